"""Unpacks weights of four bits with a scale and a zero point per group into float16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def dequantize_int4(packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """(level − zero) · scale; levels lie in the low, then in the high four bits."""
    levels = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1).to(scales.dtype)
    grouped = levels.reshape(*scales.shape, -1) - zeros.to(scales.dtype)[:, :, None]
    return (grouped * scales[:, :, None]).flatten(1)


def _case(rows: int, columns: int, group: int = 128) -> Case:
    packed = TensorSpec((rows, columns // 2), "uint8", distribution="integers", high=256)
    scales = TensorSpec((rows, columns // group), "float16", distribution="uniform", low=0.001, high=0.01)
    zeros = TensorSpec((rows, columns // group), "uint8", distribution="integers", high=16)
    moved = packed.nbytes + scales.nbytes + zeros.nbytes + 2 * rows * columns
    return Case(f"{rows}x{columns}_g{group}", (packed, scales, zeros), moved, 2 * rows * columns)


TASK = Task(
    name="dequantize_int4",
    description=(
        "Unpacking of 4-bit weights with zero points, as of AWQ and GPTQ. packed is a contiguous uint8 matrix [rows, columns / "
        "2]: its element [r, p] holds the level of column 2p in its low four bits and that of column 2p + 1 in its high four. "
        "scales (float16) and zeros (uint8, from 0 to 15) are contiguous matrices [rows, groups]; columns / groups columns form"
        " a group, an even number. y[r, c] = (level - zeros[r, g]) * scales[r, g] with g = c // (columns / groups). The result "
        "is a new contiguous float16 matrix [rows, columns]."
    ),
    entry="dequantize_int4",
    reference=dequantize_int4,
    training_cases=(
        _case(14336, 4096),  # gate projection of Llama 3.1 8B
        _case(4096, 14336),  # its down projection
        _case(8192, 8192),  # attention output of Llama 3.1 70B
    ),
    held_out_cases=(_case(512, 4096), _case(1023, 1026, 54), _case(28672, 8192)),
    small_cases=(_case(3, 36, 6), _case(5, 130, 10), _case(1, 2, 2)),
    starting_kernels=("../starts/dequantize_int4.py",),
    kind="quantisation",
)
