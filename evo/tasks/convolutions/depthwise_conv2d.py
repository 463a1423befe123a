"""Depthwise convolution in two dimensions with bias, in float16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def depthwise_conv2d(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Each channel with its own square filter of odd size, images padded by zeros to keep their size; in at least float32."""
    wide = torch.promote_types(x.dtype, torch.float32)
    taps, height, width = weight.shape[-1], x.shape[2], x.shape[3]
    padded = torch.nn.functional.pad(x.to(wide), (taps // 2,) * 4)
    total = bias.to(wide)[:, None, None].expand_as(x).clone()
    for row in range(taps):
        for column in range(taps):
            total += weight[:, row, column, None, None].to(wide) * padded[:, :, row : row + height, column : column + width]
    return total.to(x.dtype)


def _case(images: int, channels: int, height: int, width: int, taps: int) -> Case:
    x = TensorSpec((images, channels, height, width), "float16")
    weight = TensorSpec((channels, taps, taps), "float16", scale=1.0 / taps)
    bias = TensorSpec((channels,), "float16", scale=0.5)
    return Case(
        f"{images}x{channels}x{height}x{width}_k{taps}",
        (x, weight, bias),
        2 * x.nbytes + weight.nbytes + bias.nbytes,
        x.numel * (2 * taps * taps + 1),
    )


TASK = Task(
    name="depthwise_conv2d",
    description=(
        "Depthwise convolution. x is contiguous float16 [images, channels, height, width], weight contiguous float16 [channels,"
        " k, k] with odd k, bias float16 [channels]. y[n, c, i, j] = bias[c] + sum over r, s of weight[c, r, s] * x[n, c, i + r"
        " - k // 2, j + s - k // 2], where x is 0 outside of the image. The result is a new contiguous float16 tensor of x's "
        "shape. Accumulate in float32."
    ),
    entry="depthwise_conv2d",
    reference=depthwise_conv2d,
    training_cases=(
        _case(64, 96, 56, 56, 7),  # ConvNeXt-T, first stage
        _case(64, 384, 14, 14, 7),  # its third stage
        _case(64, 144, 56, 56, 3),  # MobileNetV2
    ),
    held_out_cases=(_case(1, 768, 7, 7, 7), _case(3, 33, 29, 31, 5), _case(128, 192, 56, 56, 7)),
    small_cases=(_case(2, 3, 5, 7, 3), _case(1, 5, 9, 4, 7), _case(1, 4, 11, 17, 5)),
    starting_kernels=("../starts/depthwise_conv2d.py",),
    kind="convolution",
)
