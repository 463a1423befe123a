"""Matrix product of 8-bit floats with a scale per row and per column, as for FP8 inference and training on Hopper.

Elements are float8_e4m3fn, given as their bits in uint8: kernels reinterpret what they load. Needs a GPU of compute capability 8.9.
"""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def gemm_fp8(a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor) -> torch.Tensor:
    """(a bᵀ) · a_scale · b_scale; bfloat16, or float64 where the scales are."""
    wide = a_scale.dtype
    left, right = (bits.view(torch.float8_e4m3fn).to(wide) for bits in (a, b))
    y = (left @ right.t()) * a_scale[:, None] * b_scale[None, :]
    return y.to(torch.bfloat16) if wide == torch.float32 else y


def _case(m: int, n: int, k: int) -> Case:
    # A deviation of a quarter of the range, as scales that are made from the largest magnitude give.
    a = TensorSpec((m, k), "uint8", distribution="float8_e4m3fn", scale=112.0)
    b = TensorSpec((n, k), "uint8", distribution="float8_e4m3fn", scale=112.0)
    a_scale = TensorSpec((m,), "float32", distribution="uniform", low=0.005, high=0.02)
    b_scale = TensorSpec((n,), "float32", distribution="uniform", low=0.005 * k**-0.5, high=0.02 * k**-0.5)
    moved = a.nbytes + b.nbytes + a_scale.nbytes + b_scale.nbytes + 2 * m * n
    return Case(f"{m}x{n}x{k}", (a, b, a_scale, b_scale), moved, m * n * (2 * k + 2))


TASK = Task(
    name="gemm_fp8",
    description=(
        "Linear layer on 8-bit floats: y[i, j] = (sum over k of a[i, k] * b[j, k]) * a_scale[i] * b_scale[j]. a [m, k] and b "
        "[n, k] are contiguous uint8 matrices that hold the bits of float8_e4m3fn numbers (never NaN): in Triton, "
        "x.to(tl.float8e4nv, bitcast=True) after the load. a_scale [m] and b_scale [n] are float32 vectors; y is a new "
        "contiguous bfloat16 matrix [m, n]. Accumulate and scale in float32: on Hopper, tl.dot adds up float8 products with some 14 "
        "bits unless max_num_imprecise_acc is small."
    ),
    entry="gemm_fp8",
    reference=gemm_fp8,
    training_cases=(
        _case(4096, 4096, 4096),  # attention projections of Llama 3.1 8B
        _case(4096, 14336, 4096),  # its feed-forward layer
        _case(64, 28672, 8192),  # Llama 3.1 70B decodes 64 sequences
    ),
    held_out_cases=(_case(1, 4096, 4096), _case(777, 1111, 555), _case(8192, 8192, 8192)),
    small_cases=(_case(5, 19, 33), _case(65, 70, 40), _case(1, 130, 64)),
    starting_kernels=("../starts/gemm_fp8.py",),
    kind="gemm",
)
