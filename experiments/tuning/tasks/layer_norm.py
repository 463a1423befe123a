"""Layer normalisation in float16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalises each row, then scales and shifts."""
    return torch.nn.functional.layer_norm(x, (x.shape[1],), weight, bias, eps)


def _case(rows: int, columns: int) -> Case:
    # Per element: sum, difference, square, sum, scale, weight, bias.
    return Case(
        name=f"{rows}x{columns}",
        arguments=(
            TensorSpec((rows, columns), "float16"),
            TensorSpec((columns,), "float16"),
            TensorSpec((columns,), "float16"),
            1e-5,
        ),
        bytes=4 * rows * columns + 4 * columns,
        flops=7 * rows * columns,
    )


TASK = Task(
    name="layer_norm",
    description=(
        "Layer normalisation of each row of a contiguous float16 matrix x [rows, columns] with weight and bias [columns] and eps, a "
        "Python float. The result is a new contiguous float16 matrix. Sums in float32."
    ),
    entry="layer_norm",
    reference=layer_norm,
    training_cases=(_case(8192, 4096),),  # hidden states of GPT-J 6B
    held_out_cases=(_case(1000, 1600),),
    small_cases=(_case(3, 17), _case(5, 300)),
    starting_kernels=("../kernels/layer_norm.py",),
    kind="norm",
)
