"""Matrix product of int8 matrices with a scale per row and per column, as for W8A8 inference."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def gemm_int8(a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor) -> torch.Tensor:
    """(a bᵀ) · a_scale · b_scale; bfloat16, or float64 where the scales are."""
    wide = a_scale.dtype
    y = (a.to(wide) @ b.to(wide).t()) * a_scale[:, None] * b_scale[None, :]
    return y.to(torch.bfloat16) if wide == torch.float32 else y


def _case(m: int, n: int, k: int) -> Case:
    a = TensorSpec((m, k), "int8", distribution="integers", low=-127, high=128)
    b = TensorSpec((n, k), "int8", distribution="integers", low=-127, high=128)
    # A level of 127 stands for about three deviations of activations of size one, and of weights of size k^(-1/2).
    a_scale = TensorSpec((m,), "float32", distribution="uniform", low=0.01, high=0.04)
    b_scale = TensorSpec((n,), "float32", distribution="uniform", low=0.01 * k**-0.5, high=0.04 * k**-0.5)
    moved = a.nbytes + b.nbytes + a_scale.nbytes + b_scale.nbytes + 2 * m * n
    return Case(f"{m}x{n}x{k}", (a, b, a_scale, b_scale), moved, m * n * (2 * k + 2))


TASK = Task(
    name="gemm_int8",
    description=(
        "Linear layer on int8: y[i, j] = (sum over k of a[i, k] * b[j, k]) * a_scale[i] * b_scale[j]. a [m, k] and b [n, k] are"
        " contiguous int8 matrices with values from -127 to 127, a_scale [m] and b_scale [n] float32 vectors; y is a new "
        "contiguous bfloat16 matrix [m, n]. Accumulate in int32, scale in float32."
    ),
    entry="gemm_int8",
    reference=gemm_int8,
    training_cases=(
        _case(4096, 4096, 4096),  # attention projections of Llama 3.1 8B
        _case(4096, 14336, 4096),  # its feed-forward layer
        _case(32, 28672, 8192),  # Llama 3.1 70B decodes 32 sequences
    ),
    held_out_cases=(_case(1, 4096, 4096), _case(777, 1111, 555), _case(8192, 8192, 8192)),
    small_cases=(_case(5, 19, 33), _case(65, 70, 40), _case(1, 130, 64)),
    starting_kernels=("../starts/gemm_int8.py",),
    kind="gemm",
)
