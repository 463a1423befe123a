"""Causal attention, forward pass, in float16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec

SCORES_AT_ONCE = 1 << 27
"""Score elements held at a time: 1 GiB in float64, so that 8192 × 8192 scores of many heads never lie in memory together."""


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """softmax(q kᵀ / √d, causal) v for every head, some heads at a time."""
    batch, heads, length, dim = q.shape
    queries, keys, values = (tensor.reshape(batch * heads, length, dim) for tensor in (q, k, v))
    out = torch.empty_like(queries)
    future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu_(1)
    step = max(1, SCORES_AT_ONCE // (length * length))
    for start in range(0, batch * heads, step):
        part = slice(start, start + step)
        scores = queries[part] @ keys[part].transpose(1, 2) * dim**-0.5
        weights = torch.softmax(scores.masked_fill_(future, float("-inf")), dim=-1)
        out[part] = weights @ values[part]
    return out.reshape(batch, heads, length, dim)


def _case(batch: int, heads: int, length: int, dim: int) -> Case:
    # Causal: length · (length + 1) / 2 pairs of query and key, each a multiply-add per dimension in both products.
    shape = (batch, heads, length, dim)
    spec = TensorSpec(shape, "float16")
    return Case(
        name=f"b{batch}_h{heads}_s{length}_d{dim}",
        arguments=(spec, spec, spec),
        bytes=4 * spec.nbytes,
        flops=2 * batch * heads * dim * length * (length + 1),
    )


TASK = Task(
    name="attention",
    description=(
        "Causal self-attention, forward. q, k and v are contiguous float16 tensors [batch, heads, length, dim]; "
        "y = softmax(q @ k^T / sqrt(dim)) @ v per batch and head, where query i sees keys 0..i. "
        "dim is a power of two from 16 to 128, length is any. "
        "The result is a new contiguous float16 tensor of the same shape. Softmax and sums in float32."
    ),
    entry="attention",
    reference=attention,
    training_cases=(
        _case(8, 16, 1024, 64),  # GPT-2 medium
        _case(4, 32, 2048, 64),  # Llama-3.2 1B, keys and values repeated per head
        _case(1, 32, 4096, 128),  # Llama-3 8B, keys and values repeated per head
        _case(1, 32, 8192, 128),  # the same at its full training length
    ),
    held_out_cases=(
        _case(1, 3, 77, 64),  # CLIP's text length
        _case(2, 8, 1000, 128),
        _case(1, 12, 4097, 64),
        _case(3, 5, 513, 32),
        _case(1, 32, 12288, 128),
    ),
    small_cases=(_case(1, 2, 33, 16), _case(2, 1, 65, 32), _case(1, 3, 1, 64)),
    starting_kernels=("starts/attention.py",),
    kind="attention",
)
