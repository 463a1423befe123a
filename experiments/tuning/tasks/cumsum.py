"""Prefix sums of each row in float32."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def cumsum(x: torch.Tensor) -> torch.Tensor:
    """Cumulative sums along the last dimension."""
    return torch.cumsum(x, dim=-1)


def _case(rows: int, columns: int) -> Case:
    # One addition per element.
    return Case(
        name=f"{rows}x{columns}",
        arguments=(TensorSpec((rows, columns), "float32"),),
        bytes=8 * rows * columns,
        flops=rows * columns,
    )


TASK = Task(
    name="cumsum",
    description=(
        "Cumulative sum along the rows of a contiguous float32 matrix x [rows, columns]; the result is a new contiguous float32 "
        "matrix of the same shape."
    ),
    entry="cumsum",
    reference=cumsum,
    training_cases=(_case(4096, 16384),),  # sorted probabilities of a sampler, and a matrix of 256 MiB
    held_out_cases=(_case(100, 32000),),
    small_cases=(_case(3, 17), _case(5, 1300)),
    starting_kernels=("../kernels/cumsum.py",),
    kind="scan",
)
