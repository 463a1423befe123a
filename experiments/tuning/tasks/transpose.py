"""Transposition of a float16 matrix."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def transpose(x: torch.Tensor) -> torch.Tensor:
    """The transposed matrix, contiguous."""
    return x.t().contiguous()


def _case(rows: int, columns: int) -> Case:
    # Nothing is computed; an operation per element keeps ratios defined.
    return Case(
        name=f"{rows}x{columns}",
        arguments=(TensorSpec((rows, columns), "float16"),),
        bytes=4 * rows * columns,
        flops=rows * columns,
    )


TASK = Task(
    name="transpose",
    description=("Transposes a contiguous float16 matrix x [rows, columns] into a new contiguous matrix [columns, rows]."),
    entry="transpose",
    reference=transpose,
    training_cases=(_case(8192, 8192),),  # a matrix of 128 MiB
    held_out_cases=(_case(1000, 1023),),
    small_cases=(_case(3, 17), _case(65, 130)),
    starting_kernels=("../kernels/transpose.py",),
    kind="layout",
)
