"""Sum of each column in float32, as for the gradient of a bias."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def column_sum(x: torch.Tensor) -> torch.Tensor:
    """Sums over the first dimension."""
    return x.sum(dim=0)


def _case(rows: int, columns: int) -> Case:
    # One addition per element.
    return Case(
        name=f"{rows}x{columns}",
        arguments=(TensorSpec((rows, columns), "float32"),),
        bytes=4 * rows * columns + 4 * columns,
        flops=rows * columns,
    )


TASK = Task(
    name="column_sum",
    description=(
        "Sum of each column of a contiguous float32 matrix x [rows, columns]; the result is a new float32 vector [columns]."
    ),
    entry="column_sum",
    reference=column_sum,
    training_cases=(_case(16384, 4096),),  # gradients of 16384 tokens of Llama-3 8B
    held_out_cases=(_case(1000, 1023),),
    small_cases=(_case(3, 17), _case(300, 65)),
    starting_kernels=("../kernels/column_sum.py",),
    kind="reduction",
)
