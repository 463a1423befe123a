"""Causal attention within a window, with grouped keys and values, forward, in float16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec

ROWS_AT_ONCE = 512
"""Queries that the reference takes at a time, with the keys that they see."""


def sliding_window_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    """Query i sees keys max(0, i − window + 1) … i of the kv head that its head belongs to."""
    batch, heads, length, dim = q.shape
    group = heads // k.shape[1]
    out = torch.empty_like(q)
    grouped = q.reshape(batch, k.shape[1], group, length, dim)
    for start in range(0, length, ROWS_AT_ONCE):
        end, first = min(start + ROWS_AT_ONCE, length), max(0, start - window + 1)
        rows = torch.arange(start, end, device=q.device)[:, None]
        columns = torch.arange(first, end, device=q.device)[None, :]
        hidden = (columns > rows) | (columns <= rows - window)
        scores = grouped[..., start:end, :] @ k[:, :, None, first:end].transpose(-1, -2) * dim**-0.5
        weights = torch.softmax(scores.masked_fill_(hidden, float("-inf")), dim=-1)
        out[:, :, start:end] = (weights @ v[:, :, None, first:end]).flatten(1, 2)
    return out


def _case(batch: int, heads: int, kv_heads: int, length: int, dim: int, window: int) -> Case:
    q = TensorSpec((batch, heads, length, dim), "float16")
    k = TensorSpec((batch, kv_heads, length, dim), "float16")
    within = min(window, length)
    pairs = within * (within + 1) // 2 + (length - within) * within
    return Case(
        f"b{batch}_h{heads}_k{kv_heads}_s{length}_d{dim}_w{window}",
        (q, k, k, window),
        2 * q.nbytes + 2 * k.nbytes,
        4 * batch * heads * dim * pairs,
    )


TASK = Task(
    name="sliding_window_attention",
    description=(
        "Causal attention within a sliding window, forward. q is contiguous float16 [batch, heads, length, dim], k and v are "
        "contiguous float16 [batch, kv_heads, length, dim]; heads h * (heads / kv_heads) and those after it share the kv head "
        "h; window is a positive int. y = softmax(q @ k^T / sqrt(dim)) @ v per batch and head, where query i sees keys max(0, i"
        " - window + 1)..i. dim is a power of two from 16 to 128, length is any. The result is a new contiguous float16 tensor "
        "of q's shape. Softmax and sums in float32."
    ),
    entry="sliding_window_attention",
    reference=sliding_window_attention,
    training_cases=(
        _case(1, 32, 8, 8192, 128, 4096),  # Mistral 7B v0.1
        _case(1, 64, 8, 8192, 64, 128),  # gpt-oss 120B
        _case(4, 16, 8, 4096, 128, 1024),  # the window of Gemma 3
    ),
    held_out_cases=(_case(1, 6, 2, 333, 64, 100), _case(2, 8, 8, 1001, 32, 1500), _case(2, 32, 8, 16384, 128, 4096)),
    small_cases=(_case(1, 2, 1, 37, 16, 5), _case(2, 4, 2, 70, 32, 33), _case(1, 2, 2, 9, 16, 100)),
    starting_kernels=("../starts/sliding_window_attention.py",),
    kind="attention",
)
