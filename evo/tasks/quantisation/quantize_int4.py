"""Symmetric quantisation of groups of columns to four bits, two levels packed into a byte."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec, Tolerance
from evo.tasks.draws import DEFAULT_VARIATIONS, Variation

SMALLEST = 1e-10
"""Groups whose largest magnitude is below this are scaled as if it were this, so that a group of zeros divides by no zero."""


def quantize_int4(x: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale = largest magnitude of the group / 7; returns (round(x / scale) + 8, two by two in a byte, scales)."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32)).reshape(x.shape[0], -1, group)
    scales = wide.abs().amax(dim=-1).clamp(min=SMALLEST) / 7
    levels = (torch.round(wide / scales[..., None]).clamp(-7, 7) + 8).flatten(1).to(torch.uint8)
    return levels[:, 0::2] | (levels[:, 1::2] << 4), scales


def _case(rows: int, columns: int, group: int = 128, dtype: str = "bfloat16", offset: int = 0) -> Case:
    x = TensorSpec((rows, columns), dtype, offset=offset)
    # Per element: magnitude, maximum, division, rounding, clamp, offset.
    moved = x.nbytes + x.numel // 2 + 4 * rows * columns // group
    return Case(f"{rows}x{columns}_g{group}_{dtype}", (x, group), moved, 6 * x.numel)


TASK = Task(
    name="quantize_int4",
    description=(
        "Symmetric 4-bit quantisation of groups of columns with packing. x is a contiguous matrix [rows, columns] in bfloat16 "
        "or float32, group an even int that divides columns. Per row and group: scale = max(|x| over the group, at least 1e-10)"
        " / 7 in float32; level = x / scale rounded to the nearest integer, clamped to [-7, 7], plus 8. Returns the tuple "
        "(packed, scales): packed is a new contiguous uint8 matrix [rows, columns / 2] whose element [r, p] is level[r, 2p] + "
        "16 * level[r, 2p + 1]; scales a new contiguous float32 matrix [rows, columns / group]. A level may differ by one where"
        " x / scale lies at a rounding boundary."
    ),
    entry="quantize_int4",
    reference=quantize_int4,
    training_cases=(
        _case(14336, 4096),  # gate projection of Llama 3.1 8B
        _case(4096, 14336),  # its down projection
        _case(8192, 8192, 32),  # attention output of Llama 3.1 70B, in groups of 32
    ),
    held_out_cases=(_case(512, 4096, dtype="float32"), _case(1001, 1026, 54), _case(28672, 8192)),
    small_cases=(_case(3, 36, 6, "float32", offset=1), _case(24, 96, 16), _case(2, 130, 26, "float32")),
    starting_kernels=("../starts/quantize_int4.py",),
    # A level of either half of a byte may be off by one. In bfloat16, with 8 bits, one quotient in some hundred is an exact half.
    tolerance=Tolerance(integer_slack=17, integer_share=0.04),
    # Not TIES, nor what is rounded to few digits like them: whole groups are exact halves.
    variations=(DEFAULT_VARIATIONS | {Variation.WIDE, Variation.HUGE}) - {Variation.TIES, Variation.SORTED},
    kind="quantisation",
)
