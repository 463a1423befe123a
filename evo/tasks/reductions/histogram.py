"""How often each number occurs: tokens per expert, or a histogram of bytes."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def histogram(x: torch.Tensor, bins: int) -> torch.Tensor:
    """Counts of 0 … bins − 1; whatever lies outside is not counted."""
    inside = (x >= 0) & (x < bins)
    return torch.bincount(torch.where(inside, x, bins), minlength=bins + 1)[:bins].to(torch.int32)


def _case(count: int, bins: int, offset: int = 0) -> Case:
    # One in ten lies outside, on either side.
    beyond = max(1, bins // 20)
    x = TensorSpec((count,), "int32", distribution="integers", low=-beyond, high=bins + beyond, offset=offset)
    return Case(f"{count}_b{bins}", (x, bins), x.nbytes + 4 * bins, count)


TASK = Task(
    name="histogram",
    description=(
        "Histogram of integers. x is an int32 vector [count], bins a positive int; the result is a new int32 vector [bins] "
        "whose element i is the number of elements of x that equal i. Elements below 0 or not below bins are not counted."
    ),
    entry="histogram",
    reference=histogram,
    training_cases=(
        _case(16384 * 8, 256),  # experts of DeepSeek-V3, 8 for each of 16384 tokens
        _case(1 << 24, 256),  # bytes of a 16-megapixel image
        _case(1 << 20, 32000),  # tokens of a batch over Llama 2's vocabulary
    ),
    held_out_cases=(
        _case(4096 * 2, 8),  # experts of Mixtral
        _case(1_000_003, 1000),
        _case(1 << 26, 256),
    ),
    small_cases=(_case(37, 5, offset=1), _case(1000, 130), _case(1, 3)),
    starting_kernels=("../starts/histogram.py",),
    kind="reduction",
)
