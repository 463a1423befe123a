"""Symmetric int8 quantisation with a scale per row and group of columns, as of 128 columns in DeepSeek-V3 and of 32 in MX formats."""

from __future__ import annotations

import torch

from evo.tasks.base import DTYPE_BYTES, Case, Task, TensorSpec, Tolerance
from evo.tasks.draws import DEFAULT_VARIATIONS, Variation

SMALLEST = 1e-10
"""Groups whose largest magnitude is below this are scaled as if it were this, so that a group of zeros divides by no zero."""


def quantize_groups(x: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale = largest magnitude of the group / 127; returns (round(x / scale) as int8, scales)."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32)).reshape(x.shape[0], -1, group)
    scales = wide.abs().amax(dim=-1).clamp(min=SMALLEST) / 127
    levels = torch.round(wide / scales[..., None]).clamp(-127, 127)
    return levels.flatten(1).to(torch.int8), scales


def _case(rows: int, columns: int, group: int = 128, dtype: str = "bfloat16", offset: int = 0) -> Case:
    x = TensorSpec((rows, columns), dtype, scale=3.0, offset=offset)
    # Per element: magnitude, maximum, division, rounding, clamp.
    moved = x.numel * (DTYPE_BYTES[dtype] + 1) + 4 * rows * columns // group
    return Case(f"{rows}x{columns}_g{group}_{dtype}", (x, group), moved, 5 * x.numel)


TASK = Task(
    name="quantize_groups",
    description=(
        "Symmetric int8 quantisation of groups of columns. x is a contiguous matrix [rows, columns] in bfloat16 or float32, "
        "group an int that divides columns. Per row and group: scale = max(|x| over the group, at least 1e-10) / 127 in "
        "float32; q = x / scale rounded to the nearest integer, clamped to [-127, 127]. Returns the tuple (q, scales): q is a "
        "new contiguous int8 matrix [rows, columns], scales a new contiguous float32 matrix [rows, columns / group]. A level "
        "may differ by one where x / scale lies at a rounding boundary."
    ),
    entry="quantize_groups",
    reference=quantize_groups,
    training_cases=(
        _case(4096, 7168),  # hidden states of DeepSeek-V3, in groups of 128 as it has them
        _case(8192, 4096),  # Llama 3.1 8B
        _case(4096, 14336, 32),  # inputs of its down projection, in groups of 32 as MX formats have them
    ),
    held_out_cases=(_case(1, 7168, dtype="float32"), _case(1001, 1026, 54), _case(16384, 7168)),
    small_cases=(_case(3, 36, 6, "float32", offset=1), _case(24, 96, 16), _case(2, 130, 65, "float32")),
    starting_kernels=("../starts/quantize_groups.py",),
    # Exact halves, which kernels may round either way, as in the quantisation of rows; of groups of bfloat16, one in 128 has them.
    tolerance=Tolerance(integer_slack=1, integer_share=0.02),
    # Not TIES: of few values, whole groups are exact halves (three of six is 63.5 of 127).
    variations=(DEFAULT_VARIATIONS | {Variation.WIDE, Variation.HUGE}) - {Variation.TIES},
    kind="quantisation",
)
