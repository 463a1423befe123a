"""Group normalisation followed by SiLU, in float16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def group_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, groups: int, eps: float) -> torch.Tensor:
    """Normalises each image's groups of channels, applies gain and bias per channel, then SiLU."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normal = torch.nn.functional.group_norm(wide, groups, weight.to(wide.dtype), bias.to(wide.dtype), eps)
    return torch.nn.functional.silu(normal).to(x.dtype)


def _case(images: int, channels: int, height: int, width: int, groups: int = 32) -> Case:
    count = images * channels * height * width
    # Per element: sum, difference, square, sum, scale, gain, bias, and four operations of SiLU.
    return Case(
        name=f"{images}x{channels}x{height}x{width}_g{groups}",
        arguments=(
            TensorSpec((images, channels, height, width), "float16"),
            TensorSpec((channels,), "float16", distribution="uniform", low=0.5, high=1.5),
            TensorSpec((channels,), "float16", scale=0.5),
            groups,
            1e-5,
        ),
        bytes=2 * (2 * count + 2 * channels),
        flops=11 * count,
    )


TASK = Task(
    name="group_norm",
    description=(
        "Group normalisation with SiLU, as in the residual blocks of diffusion UNets. x is contiguous float16 [images, "
        "channels, height, width], weight and bias are float16 [channels], groups divides channels, eps is a Python float. Per "
        "image and group of channels / groups channels: n = (x - mean) / sqrt(var + eps) over all its elements; z = n * weight "
        "+ bias per channel; y = z * sigmoid(z). The result is a new contiguous float16 tensor of the same shape. Compute in "
        "float32."
    ),
    entry="group_norm",
    reference=group_norm,
    training_cases=(
        _case(4, 320, 64, 64),  # Stable Diffusion 1.5, first level of the UNet
        _case(4, 1280, 16, 16),  # its third level
        _case(2, 320, 128, 128),  # SDXL, first level
    ),
    held_out_cases=(
        _case(1, 1280, 8, 8),  # Stable Diffusion 1.5, middle block
        _case(3, 60, 33, 31, groups=6),
        _case(2, 640, 64, 64),  # SDXL, second level
        _case(1, 128, 512, 512),  # its image decoder
    ),
    small_cases=(_case(2, 6, 5, 7, groups=3), _case(1, 64, 4, 4), _case(1, 2, 1, 1, groups=1)),
    starting_kernels=("../starts/group_norm.py",),
    kind="norm",
)
