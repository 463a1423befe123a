"""Row-wise symmetric quantisation to int8 with one float32 scale per row."""

from __future__ import annotations

import torch

from evo.tasks.base import DTYPE_BYTES, Case, Task, TensorSpec, Tolerance
from evo.tasks.draws import DEFAULT_VARIATIONS, Variation

SMALLEST = 1e-10
"""Rows whose largest magnitude is below this are scaled as if it were this, so that a row of zeros divides by no zero."""


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale = largest magnitude of the row / 127; returns (round(x / scale) as int8, scales)."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scales = wide.abs().amax(dim=-1).clamp(min=SMALLEST) / 127
    levels = torch.round(wide / scales[:, None]).clamp(-127, 127)
    return levels.to(torch.int8), scales


def _case(rows: int, columns: int, dtype: str = "bfloat16", offset: int = 0) -> Case:
    count = rows * columns
    # Per element: magnitude, maximum, division, rounding, clamp.
    return Case(
        name=f"{rows}x{columns}_{dtype}",
        arguments=(TensorSpec((rows, columns), dtype, scale=3.0, offset=offset),),
        bytes=count * DTYPE_BYTES[dtype] + count + 4 * rows,
        flops=5 * count,
    )


TASK = Task(
    name="quantize_rows",
    description=(
        "Symmetric int8 quantisation of each row of a contiguous matrix x [rows, columns] in bfloat16, float16 or float32, as for "
        "W8A8 inference. scale = max(|x| over the row, at least 1e-10) / 127 in float32; q = x / scale rounded to the nearest "
        "integer, clamped to [-127, 127]. Returns the tuple (q, scales): q is a new contiguous int8 matrix [rows, columns], "
        "scales a new float32 vector [rows]. A level may differ by one where x / scale lies at a rounding boundary."
    ),
    entry="quantize_rows",
    reference=quantize_rows,
    training_cases=(
        _case(8192, 4096),  # hidden states of Llama-3 8B
        _case(4096, 14336),  # inputs of its down projection
        _case(2048, 8192),  # hidden states of Llama-3 70B
        _case(16384, 5120, "float16"),  # Llama-2 13B
    ),
    held_out_cases=(
        _case(1, 4096, "float32"),
        _case(4097, 1023, "float16"),
        _case(1000, 18944),  # Qwen2.5 7B
        _case(65, 333),
        _case(4096, 28672),  # inputs of Llama-3 70B's down projection
    ),
    # A start that no vector load is aligned to, one element, none.
    small_cases=(
        _case(3, 37, "float32"),
        _case(5, 257, "float16", offset=1),
        _case(24, 48),
        _case(1, 1, "float32"),
        _case(0, 37, "float32"),
    ),
    starting_kernels=("starts/quantize_rows.py",),
    # Exact halves, which kernels may round either way: where a row's largest magnitude has the mantissa 127, one row in 128 of
    # bfloat16, up to a sixth of the row are halves. So cases of few rows have other dtypes, where halves are rare.
    tolerance=Tolerance(integer_slack=1, integer_share=0.02),
    # Not TIES: of few values, whole columns are exact halves (three of six is 63.5 of 127).
    variations=(DEFAULT_VARIATIONS | {Variation.WIDE, Variation.HUGE}) - {Variation.TIES},
    kind="quantisation",
)
