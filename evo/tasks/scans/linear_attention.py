"""Causal linear attention, forward, in bfloat16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec

CHUNK = 64
"""Tokens that the reference takes at once: within a chunk by masked products, over the chunks by the running sum of k vᵀ."""


def linear_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Σ_{s ≤ t} (q_t · k_s) v_s / √d; products in the dtype of the inputs, the running sum in at least float32."""
    wide = torch.promote_types(q.dtype, torch.float32)
    scaled = (q.to(wide) * q.shape[-1] ** -0.5).to(q.dtype)
    state = torch.zeros((*q.shape[:2], q.shape[3], v.shape[3]), dtype=wide, device=q.device)
    parts = []
    for queries, keys, values in zip(*(torch.split(tensor, CHUNK, 2) for tensor in (scaled, k, v)), strict=True):
        scores = (queries @ keys.transpose(2, 3)).tril()
        parts.append((scores @ values).to(wide) + (queries @ state.to(q.dtype)).to(wide))
        state = state + (keys.transpose(2, 3) @ values).to(wide)
    return torch.cat(parts, dim=2).to(q.dtype)


def _case(batch: int, heads: int, length: int, dim: int) -> Case:
    spec = TensorSpec((batch, heads, length, dim), "bfloat16")
    # As a recurrence: k vᵀ is added to the state and the state multiplied by q, a multiply-add per element of the state each.
    return Case(f"b{batch}_h{heads}_s{length}_d{dim}", (spec, spec, spec), 4 * spec.nbytes, 4 * spec.numel * dim)


TASK = Task(
    name="linear_attention",
    description=(
        "Causal linear attention, forward. q, k and v are contiguous bfloat16 tensors [batch, heads, length, dim]; per batch "
        "and head y[t] = sum over s <= t of (q[t] . k[s]) / sqrt(dim) * v[s], without softmax or normalisation. dim is a power "
        "of two from 16 to 128, length is any. The result is a new contiguous bfloat16 tensor of the same shape. Sums in "
        "float32. Work in time linear in the length is possible: y[t] = q[t] S[t] / sqrt(dim) with S[t] = S[t-1] + k[t]^T v[t]."
    ),
    entry="linear_attention",
    reference=linear_attention,
    training_cases=(
        _case(8, 16, 2048, 64),  # a 350M model at GPT-2 medium's sizes
        _case(4, 16, 4096, 128),  # a 1.3B model with heads of 128
        _case(1, 32, 16384, 128),  # a 7B model, long context
    ),
    held_out_cases=(_case(1, 3, 77, 64), _case(2, 5, 1001, 32), _case(2, 32, 16384, 128)),
    small_cases=(_case(1, 2, 33, 16), _case(2, 1, 70, 32), _case(1, 3, 1, 16)),
    starting_kernels=("../starts/linear_attention.py",),
    kind="attention",
)
