"""RMS normalisation fused with the residual addition before it, in bfloat16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec
from evo.tasks.draws import DEFAULT_VARIATIONS, Variation


def rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds, then normalises each row by its root mean square in at least float32; returns (normalised, sum)."""
    total = x + residual
    wide = total.to(torch.promote_types(total.dtype, torch.float32))
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * scale).to(total.dtype) * weight, total


def _case(rows: int, hidden: int, offset: int = 0) -> Case:
    count = rows * hidden
    # Two matrices read, two written, one weight vector; per element: addition, square, sum, scale, weight.
    return Case(
        name=f"{rows}x{hidden}",
        arguments=(
            TensorSpec((rows, hidden), "bfloat16", offset=offset),
            TensorSpec((rows, hidden), "bfloat16", scale=2.0),
            TensorSpec((hidden,), "bfloat16", distribution="uniform", low=0.5, high=1.5),
            1e-5,
        ),
        bytes=2 * (4 * count + hidden) if count else 0,
        flops=5 * count,
    )


TASK = Task(
    name="rms_norm",
    description=(
        "Residual addition followed by RMS normalisation, as between the blocks of Llama. Inputs: x and residual, contiguous "
        "bfloat16 [rows, hidden]; weight, bfloat16 [hidden]; eps, a Python float. "
        "h = x + residual; y = h / sqrt(mean(h*h over the last dimension) + eps) * weight. "
        "Returns the tuple (y, h), two new contiguous bfloat16 matrices. Accumulate in float32."
    ),
    entry="rms_norm",
    reference=rms_norm,
    training_cases=(
        _case(4096, 4096),  # Llama-3 8B and Mistral 7B, 4096 tokens
        _case(2048, 8192),  # Llama-3 70B
        _case(16384, 3584),  # Qwen2.5 7B
        _case(8192, 5120),  # Llama-2 13B, Mistral Nemo
    ),
    held_out_cases=(
        _case(7, 4096),
        _case(4099, 2880),  # gpt-oss
        _case(333, 12288),  # Mistral Large
        _case(1024, 1023),
        _case(16384, 8192),
    ),
    # A start that no vector load is aligned to, one element, none.
    small_cases=(_case(3, 17, offset=1), _case(2, 128), _case(5, 300), _case(1, 1), _case(0, 17)),
    starting_kernels=("starts/rms_norm.py",),
    # Not HUGE: its squares overflow float32, in the reference too, which then returns zeros.
    variations=DEFAULT_VARIATIONS | {Variation.WIDE},
    kind="norm",
)
