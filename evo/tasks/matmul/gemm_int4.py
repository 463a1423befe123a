"""Linear layer with weights in four bits and groups of scales, activations in float16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def gemm_int4(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """x Wᵀ with W[j, i] = (level − 8) · scales[j, i // group]; weights are rounded to the dtype of the scales first."""
    levels = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1).to(scales.dtype) - 8
    group = levels.shape[1] // scales.shape[1]
    return x @ (levels.reshape(*scales.shape, group) * scales[:, :, None]).flatten(1).t()


def _case(m: int, n: int, k: int, group: int = 128) -> Case:
    x = TensorSpec((m, k), "float16")
    packed = TensorSpec((n, k // 2), "uint8", distribution="integers", high=256)
    # Levels have a deviation of 4.6, so that outputs are of size one.
    scales = TensorSpec((n, k // group), "float16", distribution="uniform", low=0.1 * k**-0.5, high=0.4 * k**-0.5)
    # Per weight a difference and a product.
    moved = x.nbytes + packed.nbytes + scales.nbytes + 2 * m * n
    return Case(f"{m}x{n}x{k}_g{group}", (x, packed, scales), moved, 2 * m * n * k + 2 * n * k)


TASK = Task(
    name="gemm_int4",
    description=(
        "Linear layer with 4-bit weights (W4A16): y = x @ W^T. x is a contiguous float16 matrix [m, k]. packed is a contiguous "
        "uint8 matrix [n, k / 2]: its element [j, p] holds the level of W[j, 2p] in its low four bits and that of W[j, 2p + 1] "
        "in its high four. scales is a contiguous float16 matrix [n, groups] with k / groups weights per group, an even number:"
        " W[j, i] = (level - 8) * scales[j, i // (k / groups)]. y is a new contiguous float16 matrix [m, n]. Accumulate in "
        "float32."
    ),
    entry="gemm_int4",
    reference=gemm_int4,
    training_cases=(
        _case(1, 28672, 4096),  # gate and up of Llama 3.1 8B, one sequence
        _case(16, 4096, 14336),  # its down projection, 16 sequences
        _case(2048, 4096, 4096),  # a prompt through its attention output
    ),
    held_out_cases=(_case(1, 2048, 2048), _case(77, 333, 576, 64), _case(4096, 14336, 4096)),
    small_cases=(_case(3, 19, 36, 6), _case(17, 70, 64, 16), _case(1, 33, 130, 2)),
    starting_kernels=("../starts/gemm_int4.py",),
    kind="gemm",
)
