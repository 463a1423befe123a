"""Batch normalisation in inference with the residual addition and ReLU that follow it, in float16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def batch_norm_inference(
    x: torch.Tensor,
    residual: torch.Tensor,
    mean: torch.Tensor,
    var: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """relu(batch_norm(x) + residual) with given statistics per channel."""
    wide = torch.promote_types(x.dtype, torch.float32)
    normal = torch.nn.functional.batch_norm(x.to(wide), mean, var, weight, bias, False, 0.0, eps)
    return torch.relu(normal + residual.to(wide)).to(x.dtype)


def _case(images: int, channels: int, height: int, width: int) -> Case:
    image = TensorSpec((images, channels, height, width), "float16", scale=2.0)
    positive = TensorSpec((channels,), "float32", distribution="uniform", low=0.5, high=1.5)
    normal = TensorSpec((channels,), "float32", scale=0.5)
    # Per element: difference, scale, bias, residual, maximum.
    return Case(
        name=f"{images}x{channels}x{height}x{width}",
        arguments=(image, image, normal, positive, positive, normal, 1e-5),
        bytes=3 * image.nbytes + 4 * positive.nbytes,
        flops=5 * image.numel,
    )


TASK = Task(
    name="batch_norm_inference",
    description=(
        "End of a residual block in inference: y = relu((x - mean) / sqrt(var + eps) * weight + bias + residual). x and "
        "residual are contiguous float16 [images, channels, height, width]; mean, var, weight and bias are float32 [channels]; "
        "eps is a Python float. The result is a new contiguous float16 tensor of the same shape. Compute in float32."
    ),
    entry="batch_norm_inference",
    reference=batch_norm_inference,
    training_cases=(
        _case(32, 256, 56, 56),  # ResNet-50, first stage
        _case(64, 512, 28, 28),  # its second stage
        _case(64, 2048, 7, 7),  # its last stage
    ),
    held_out_cases=(_case(1, 2048, 7, 7), _case(5, 33, 29, 31), _case(128, 256, 56, 56)),
    small_cases=(_case(3, 5, 4, 3), _case(2, 17, 9, 7), _case(1, 1, 1, 1)),
    starting_kernels=("../starts/batch_norm_inference.py",),
    kind="norm",
)
