"""Batch normalisation in training, which updates the running statistics in place, in float32."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    momentum: float,
    eps: float,
) -> torch.Tensor:
    """Normalises each channel by the statistics of the batch, and moves the running ones towards them."""
    return torch.nn.functional.batch_norm(x, running_mean, running_var, weight, bias, True, momentum, eps)


def _case(images: int, channels: int, height: int, width: int) -> Case:
    count = images * channels * height * width
    vector = TensorSpec((channels,), "float32", distribution="uniform", low=0.5, high=1.5)
    # Per element: sum, difference, square, sum, scale, bias.
    return Case(
        name=f"{images}x{channels}x{height}x{width}",
        arguments=(
            TensorSpec((images, channels, height, width), "float32", scale=2.0),
            vector,
            TensorSpec((channels,), "float32", scale=0.5),
            TensorSpec((channels,), "float32", scale=0.5),
            vector,
            0.1,
            1e-5,
        ),
        bytes=4 * (2 * count + 6 * channels),
        flops=6 * count,
    )


TASK = Task(
    name="batch_norm",
    description=(
        "Batch normalisation in training mode. x is contiguous float32 [images, channels, height, width]; weight, bias, "
        "running_mean and running_var are float32 [channels]; momentum and eps are Python floats. Per channel, over images and "
        "pixels (n of them): y = (x - mean) / sqrt(var + eps) * weight + bias with var the mean of (x - mean)^2; y is a new "
        "contiguous tensor of x's shape. Then in place: running_mean = (1 - momentum) * running_mean + momentum * mean and "
        "running_var = (1 - momentum) * running_var + momentum * var * n / (n - 1). n is at least 2."
    ),
    entry="batch_norm",
    reference=batch_norm,
    training_cases=(
        _case(32, 64, 112, 112),  # ResNet-50, after its first convolution
        _case(64, 256, 56, 56),  # its first stage
        _case(64, 2048, 7, 7),  # its last stage
    ),
    held_out_cases=(
        _case(8, 512, 7, 7),
        _case(7, 33, 29, 31),
        _case(128, 256, 56, 56),
    ),
    small_cases=(_case(3, 5, 4, 3), _case(2, 17, 9, 7), _case(2, 1, 1, 1)),
    starting_kernels=("../starts/batch_norm.py",),
    mutates=(3, 4),
    kind="norm",
)
