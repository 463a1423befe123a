"""Matrix times vector in float16, as in decoding one token."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def matvec(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """w @ x."""
    return w @ x


def _case(rows: int, columns: int) -> Case:
    # A multiplication and an addition per weight.
    return Case(
        name=f"{rows}x{columns}",
        arguments=(
            TensorSpec((rows, columns), "float16"),
            TensorSpec((columns,), "float16", scale=columns**-0.5),
        ),
        bytes=2 * (rows * columns + rows + columns),
        flops=2 * rows * columns,
    )


TASK = Task(
    name="matvec",
    description=(
        "y = w @ x for a contiguous float16 matrix w [rows, columns] and a float16 vector x [columns]; y is a new float16 vector. "
        "Sums in float32."
    ),
    entry="matvec",
    reference=matvec,
    training_cases=(_case(28672, 4096),),  # gate and up projection of Llama-3 8B
    held_out_cases=(_case(1000, 1023),),
    small_cases=(_case(3, 17), _case(65, 300)),
    starting_kernels=("../kernels/matvec.py",),
    kind="gemm",
)
