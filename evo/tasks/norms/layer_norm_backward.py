"""Layer normalisation, backward: gradients of input, gain and bias, in bfloat16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def layer_norm_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients with respect to x, weight and bias; the statistics of x are computed again."""
    wide = torch.promote_types(x.dtype, torch.float32)
    centred = x.to(wide) - x.to(wide).mean(dim=-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(dim=-1, keepdim=True) + eps)
    normal = centred * scale
    inner = dy.to(wide) * weight.to(wide)
    dx = scale * (inner - inner.mean(dim=-1, keepdim=True) - normal * (inner * normal).mean(dim=-1, keepdim=True))
    dweight, dbias = (dy.to(wide) * normal).sum(dim=0), dy.to(wide).sum(dim=0)
    return dx.to(x.dtype), dweight.to(weight.dtype), dbias.to(weight.dtype)


def _case(rows: int, hidden: int, offset: int = 0) -> Case:
    count = rows * hidden
    # Per element: four operations for the statistics, four for the two means, five for dx, three for dweight and dbias.
    return Case(
        name=f"{rows}x{hidden}",
        arguments=(
            TensorSpec((rows, hidden), "bfloat16"),
            TensorSpec((rows, hidden), "bfloat16", scale=2.0, offset=offset),
            TensorSpec((hidden,), "bfloat16", distribution="uniform", low=0.5, high=1.5),
            1e-5,
        ),
        bytes=2 * (3 * count + 3 * hidden),
        flops=16 * count,
    )


TASK = Task(
    name="layer_norm_backward",
    description=(
        "Backward pass of layer normalisation y = (x - mean) / sqrt(var + eps) * weight + bias over the last dimension. dy and "
        "x are contiguous bfloat16 matrices [rows, hidden], weight is bfloat16 [hidden], eps a Python float. Returns the tuple "
        "(dx, dweight, dbias): dx [rows, hidden], dweight and dbias [hidden], new contiguous bfloat16 tensors. With r = 1 / "
        "sqrt(var + eps), n = (x - mean) * r and g = dy * weight: dx = r * (g - mean(g) - n * mean(g * n)), means over the row;"
        " dweight = sum of dy * n and dbias = sum of dy over the rows. Mean and variance of x are not given. Compute in "
        "float32."
    ),
    entry="layer_norm_backward",
    reference=layer_norm_backward,
    training_cases=(
        _case(8192, 1600),  # GPT-2 XL
        _case(4096, 6144),  # GPT-NeoX 20B
        _case(16384, 1024),  # BERT-large
    ),
    held_out_cases=(
        _case(33, 768),  # GPT-2, few tokens
        _case(1000, 1023),
        _case(4099, 2560),  # Phi-2
        _case(8192, 8192),  # Falcon 40B
    ),
    small_cases=(_case(5, 17, offset=1), _case(37, 130), _case(1, 3)),
    starting_kernels=("../starts/layer_norm_backward.py",),
    kind="norm",
)
