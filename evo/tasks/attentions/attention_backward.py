"""Causal attention, backward: gradients of queries, keys and values, in bfloat16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec
from evo.tasks.draws import DEFAULT_VARIATIONS, Variation

SCORES_AT_ONCE = 1 << 26
"""Score elements held at a time: half a GiB in float64 for each of the few matrices of that size."""


def attention_backward(
    dy: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of softmax(q kᵀ / √d, causal) v for every head, some heads at a time; what is not a product is in float32 at least.

    Rowsum(p g) is taken as rowsum(dy y) with y in the dtype of the inputs, as flash attention does (Dao, 2023): the sum of a row's
    gradients is then zero but for rounding, and a kernel that does the same is no worse than the reference.
    """
    batch, heads, length, dim = q.shape
    wide, scale = torch.promote_types(q.dtype, torch.float32), dim**-0.5
    grads, queries, keys, values = (tensor.reshape(batch * heads, length, dim) for tensor in (dy, q, k, v))
    future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu_(1)
    dq, dk, dv = (torch.empty_like(queries) for _ in range(3))
    step = max(1, SCORES_AT_ONCE // (length * length))
    for start in range(0, batch * heads, step):
        part = slice(start, start + step)
        scores = (queries[part].to(wide) @ keys[part].to(wide).transpose(1, 2)) * scale
        weights = torch.softmax(scores.masked_fill_(future, float("-inf")), dim=-1)
        dweights = grads[part].to(wide) @ values[part].to(wide).transpose(1, 2)
        y = (weights.to(q.dtype) @ values[part]).to(wide)
        dscores = weights * (dweights - (grads[part].to(wide) * y).sum(dim=-1, keepdim=True)) * scale
        dv[part] = weights.to(q.dtype).transpose(1, 2) @ grads[part]
        dq[part] = dscores.to(q.dtype) @ keys[part]
        dk[part] = dscores.to(q.dtype).transpose(1, 2) @ queries[part]
    shape = (batch, heads, length, dim)
    return dq.reshape(shape), dk.reshape(shape), dv.reshape(shape)


def _case(batch: int, heads: int, length: int, dim: int) -> Case:
    spec = TensorSpec((batch, heads, length, dim), "bfloat16")
    # Causal: length · (length + 1) / 2 pairs of query and key, each a multiply-add per dimension in five products.
    return Case(
        name=f"b{batch}_h{heads}_s{length}_d{dim}",
        arguments=(spec, spec, spec, spec),
        bytes=7 * spec.nbytes,
        flops=5 * batch * heads * dim * length * (length + 1),
    )


TASK = Task(
    name="attention_backward",
    description=(
        "Causal self-attention, backward. dy (the gradient of the result), q, k and v are contiguous bfloat16 tensors [batch, "
        "heads, length, dim]. The forward pass was y = p @ v with p = softmax(q @ k^T / sqrt(dim)) per batch and head, where "
        "query i sees keys 0..i; neither y nor its statistics are given. dim is a power of two from 16 to 128, length is any. "
        "Returns the tuple (dq, dk, dv), new contiguous bfloat16 tensors of the same shape: with g = dy @ v^T and d = p * (g - "
        "rowsum(p * g)) / sqrt(dim): dq = d @ k, dk = d^T @ q, dv = p^T @ dy. Softmax and sums in float32. Equal calls must "
        "give equal bits, so no atomic additions of floats."
    ),
    entry="attention_backward",
    reference=attention_backward,
    training_cases=(
        _case(8, 16, 1024, 64),  # GPT-2 medium
        _case(2, 32, 2048, 64),  # Llama 3.2 1B, keys and values repeated per head
        _case(1, 32, 4096, 128),  # Llama 3.1 8B, keys and values repeated per head
    ),
    held_out_cases=(
        _case(1, 3, 77, 64),  # CLIP's text length
        _case(2, 8, 1000, 128),
        _case(3, 5, 513, 32),
        _case(1, 32, 8192, 128),
    ),
    small_cases=(_case(1, 2, 33, 16), _case(2, 1, 65, 32), _case(1, 3, 5, 64)),
    starting_kernels=("../starts/attention_backward.py",),
    # Gradients of q and k are differences of weighted sums. Not CONSTANT: they cancel all over. Not LARGE: one weight of a row is one
    # there, and they are what rounding leaves.
    variations=DEFAULT_VARIATIONS - {Variation.LARGE, Variation.CONSTANT},
    kind="attention",
)
