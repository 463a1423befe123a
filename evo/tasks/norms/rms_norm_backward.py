"""RMS normalisation, backward: gradients of input and gain, in bfloat16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec
from evo.tasks.draws import DEFAULT_VARIATIONS, Variation


def rms_norm_backward(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients with respect to x and weight; the mean square of x is computed again."""
    wide = torch.promote_types(x.dtype, torch.float32)
    scale = torch.rsqrt(x.to(wide).square().mean(dim=-1, keepdim=True) + eps)
    normal = x.to(wide) * scale
    inner = dy.to(wide) * weight.to(wide)
    dx = scale * (inner - normal * (inner * normal).mean(dim=-1, keepdim=True))
    return dx.to(x.dtype), (dy.to(wide) * normal).sum(dim=0).to(weight.dtype)


def _case(rows: int, hidden: int, offset: int = 0) -> Case:
    count = rows * hidden
    # Per element: two operations for the mean square, one for n, three for the mean, three for dx, two for dweight.
    return Case(
        name=f"{rows}x{hidden}",
        arguments=(
            TensorSpec((rows, hidden), "bfloat16"),
            TensorSpec((rows, hidden), "bfloat16", scale=2.0, offset=offset),
            TensorSpec((hidden,), "bfloat16", distribution="uniform", low=0.5, high=1.5),
            1e-5,
        ),
        bytes=2 * (3 * count + 2 * hidden),
        flops=11 * count,
    )


TASK = Task(
    name="rms_norm_backward",
    description=(
        "Backward pass of RMS normalisation y = x / sqrt(mean(x*x) + eps) * weight over the last dimension. dy and x are "
        "contiguous bfloat16 matrices [rows, hidden], weight is bfloat16 [hidden], eps a Python float. Returns the tuple (dx, "
        "dweight): dx [rows, hidden] and dweight [hidden], new contiguous bfloat16 tensors. With r = 1 / sqrt(mean(x*x) + eps),"
        " n = x * r and g = dy * weight: dx = r * (g - n * mean(g * n)), the mean over the row; dweight = sum of dy * n over "
        "the rows. r is not given. Compute in float32."
    ),
    entry="rms_norm_backward",
    reference=rms_norm_backward,
    training_cases=(
        _case(4096, 4096),  # Llama 3.1 8B, 4096 tokens
        _case(2048, 8192),  # Llama 3.1 70B
        _case(16384, 2048),  # Llama 3.2 1B
    ),
    held_out_cases=(
        _case(33, 3584),  # Qwen2.5 7B, few tokens
        _case(1000, 1023),
        _case(4099, 2880),  # gpt-oss
        _case(8192, 8192),
    ),
    small_cases=(_case(5, 17, offset=1), _case(37, 130), _case(1, 3)),
    # Not CONSTANT: x is nearly its own root mean square there, so that dx is what rounding leaves of two equal terms.
    variations=DEFAULT_VARIATIONS - {Variation.CONSTANT},
    starting_kernels=("../starts/rms_norm_backward.py",),
    kind="norm",
)
