"""Attention of one new token per sequence over keys and values in pages, as in decoding, in float16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def paged_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """softmax(q kᵀ / √d) v per sequence, over the first tokens of its pages; softmax in at least float32."""
    heads, dim = q.shape[1:]
    kv_heads = keys.shape[2]
    wide = torch.promote_types(q.dtype, torch.float32)
    out = torch.empty_like(q)
    for sequence, length in enumerate(lengths.tolist()):
        pages = table[sequence].long()
        k, v = (cache[pages].flatten(0, 1)[:length].transpose(0, 1) for cache in (keys, values))
        grouped = q[sequence].reshape(kv_heads, heads // kv_heads, dim)
        scores = (grouped @ k.transpose(1, 2)).to(wide) * dim**-0.5
        out[sequence] = (torch.softmax(scores, dim=-1).to(q.dtype) @ v).reshape(heads, dim)
    return out


def _case(batch: int, longest: int, heads: int, kv_heads: int, dim: int, page: int = 16) -> Case:
    pages = -(-longest // page)
    q = TensorSpec((batch, heads, dim), "float16")
    # An eighth of the pool is not in use.
    pool = TensorSpec((batch * pages + batch * pages // 8 + 1, page, kv_heads, dim), "float16")
    table = TensorSpec((batch, pages), "int32", distribution="permutation", high=pool.shape[0])
    lengths = TensorSpec((batch,), "int32", distribution="integers", low=1, high=longest + 1)
    # Half of the longest length is read on average; per token and head a multiply-add per dimension in both products.
    tokens = batch * (longest + 1) // 2
    return Case(
        f"b{batch}_s{longest}_h{heads}_k{kv_heads}_d{dim}",
        (q, pool, pool, table, lengths),
        2 * q.nbytes + 2 * tokens * kv_heads * dim * 2 + table.nbytes + lengths.nbytes,
        4 * tokens * heads * dim,
    )


TASK = Task(
    name="paged_attention",
    description=(
        "Decoding attention with paged keys and values. q is contiguous float16 [batch, heads, dim], one query per sequence; "
        "keys and values are contiguous float16 pools [pages, page, kv_heads, dim]; table is contiguous int32 [batch, pages per"
        " sequence], the pages of each sequence in order; lengths is int32 [batch], from 1. Token t of sequence b lies in "
        "keys[table[b, t // page], t % page]. Heads h * (heads / kv_heads) and those after it share the kv head h; heads / "
        "kv_heads is at most 16, page and dim are powers of two. y[b, head] = softmax(q . k / sqrt(dim)) . v over tokens "
        "0..lengths[b]-1. The result is a new contiguous float16 tensor [batch, heads, dim]. Softmax and sums in float32. What "
        "a page holds beyond the length is arbitrary."
    ),
    entry="paged_attention",
    reference=paged_attention,
    training_cases=(
        _case(32, 4096, 32, 8, 128),  # Llama 3.1 8B
        _case(8, 16384, 32, 8, 128),  # the same, long contexts
        _case(64, 2048, 32, 8, 64),  # Llama 3.2 1B
        _case(16, 8192, 64, 8, 128),  # Llama 3.1 70B
    ),
    held_out_cases=(_case(1, 1000, 32, 8, 128), _case(7, 777, 28, 4, 128), _case(4, 65536, 32, 8, 128)),
    small_cases=(_case(3, 37, 4, 2, 16), _case(2, 70, 6, 1, 32, page=4), _case(1, 1, 2, 2, 16)),
    starting_kernels=("../starts/paged_attention.py",),
    kind="attention",
)
