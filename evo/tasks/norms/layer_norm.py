"""Layer normalisation, forward, in bfloat16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalises each row by its mean and deviation; then gain and bias."""
    return torch.nn.functional.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def _case(rows: int, hidden: int, offset: int = 0) -> Case:
    count = rows * hidden
    # Per element: sum, difference, square, sum, scale, gain, bias.
    return Case(
        name=f"{rows}x{hidden}",
        arguments=(
            TensorSpec((rows, hidden), "bfloat16", offset=offset),
            TensorSpec((hidden,), "bfloat16", distribution="uniform", low=0.5, high=1.5),
            TensorSpec((hidden,), "bfloat16", scale=0.5),
            1e-5,
        ),
        bytes=2 * (2 * count + 2 * hidden) if count else 0,
        flops=7 * count,
    )


TASK = Task(
    name="layer_norm",
    description=(
        "Layer normalisation over the last dimension of a contiguous bfloat16 matrix x [rows, hidden], with weight and bias, "
        "bfloat16 [hidden], and eps, a Python float: y = (x - mean) / sqrt(var + eps) * weight + bias, where var is the mean of"
        " (x - mean)^2 over the row. The result is a new contiguous bfloat16 matrix of the same shape. Compute in float32."
    ),
    entry="layer_norm",
    reference=layer_norm,
    training_cases=(
        _case(8192, 1600),  # GPT-2 XL
        _case(4096, 6144),  # GPT-NeoX 20B
        _case(16384, 1024),  # BERT-large
        _case(2048, 12288),  # GPT-3 175B
    ),
    held_out_cases=(
        _case(7, 768),  # GPT-2, a few tokens
        _case(4099, 2560),  # Phi-2
        _case(1000, 1023),
        _case(8192, 8192),  # Falcon 40B
    ),
    small_cases=(_case(3, 17, offset=1), _case(2, 300), _case(1, 1), _case(0, 17)),
    starting_kernels=("../starts/layer_norm.py",),
    kind="norm",
)
