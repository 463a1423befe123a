"""Sum of each row in float32."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def row_sum(x: torch.Tensor) -> torch.Tensor:
    """Sums over the last dimension."""
    return x.sum(dim=-1)


def _case(rows: int, columns: int) -> Case:
    # One addition per element.
    return Case(
        name=f"{rows}x{columns}",
        arguments=(TensorSpec((rows, columns), "float32"),),
        bytes=4 * rows * columns + 4 * rows,
        flops=rows * columns,
    )


TASK = Task(
    name="row_sum",
    description=("Sum of each row of a contiguous float32 matrix x [rows, columns]; the result is a new float32 vector [rows]."),
    entry="row_sum",
    reference=row_sum,
    training_cases=(_case(8192, 8192),),  # a matrix of 256 MiB
    held_out_cases=(_case(1000, 1023),),
    small_cases=(_case(3, 17), _case(65, 300)),
    starting_kernels=("../kernels/row_sum.py",),
    kind="reduction",
)
