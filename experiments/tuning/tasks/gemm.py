"""Matrix product in float16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def gemm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b."""
    return a @ b


def _case(m: int, n: int, k: int) -> Case:
    # k multiplications and additions per output.
    return Case(
        name=f"{m}x{n}x{k}",
        arguments=(
            TensorSpec((m, k), "float16"),
            TensorSpec((k, n), "float16", scale=k**-0.5),
        ),
        bytes=2 * (m * k + k * n + m * n),
        flops=2 * m * n * k,
    )


TASK = Task(
    name="gemm",
    description=(
        "y = a @ b for contiguous float16 matrices a [m, k] and b [k, n]; y is a new contiguous float16 matrix. Sums in float32."
    ),
    entry="gemm",
    reference=gemm,
    training_cases=(_case(4096, 4096, 4096),),  # the usual square benchmark, and a projection of Llama-3 8B over 4096 tokens
    held_out_cases=(_case(777, 1111, 555),),
    small_cases=(_case(5, 19, 33), _case(65, 70, 40)),
    starting_kernels=("../kernels/gemm.py",),
    kind="gemm",
)
