"""Convolution in two dimensions, channels last, in float16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def conv2d(x: torch.Tensor, weight: torch.Tensor, stride: int, padding: int) -> torch.Tensor:
    """Convolution of images [n, height, width, channels] with filters [filters, rows, columns, channels]."""
    y = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2), stride=stride, padding=padding)
    return y.permute(0, 2, 3, 1).contiguous()


def _case(
    images: int, size: tuple[int, int], channels: int, filters: int, kernel: int = 3, stride: int = 1, padding: int = 1
) -> Case:
    x = TensorSpec((images, *size, channels), "float16")
    terms = kernel * kernel * channels
    weight = TensorSpec((filters, kernel, kernel, channels), "float16", scale=terms**-0.5)
    height, width = ((item + 2 * padding - kernel) // stride + 1 for item in size)
    outputs = images * height * width * filters
    return Case(
        f"{images}x{size[0]}x{size[1]}x{channels}_f{filters}_k{kernel}_s{stride}_p{padding}",
        (x, weight, stride, padding),
        x.nbytes + weight.nbytes + 2 * outputs,
        2 * outputs * terms,
    )


TASK = Task(
    name="conv2d",
    description=(
        "Convolution in two dimensions, channels last. x is contiguous float16 [images, height, width, channels], weight "
        "contiguous float16 [filters, k, k, channels]; stride and padding are ints. y[n, i, j, f] = sum over r, s, c of "
        "weight[f, r, s, c] * x[n, i * stride - padding + r, j * stride - padding + s, c], where x is 0 outside of the image. "
        "The result is a new contiguous float16 tensor [images, (height + 2 * padding - k) // stride + 1, (width + 2 * padding "
        "- k) // stride + 1, filters]. Accumulate in float32."
    ),
    entry="conv2d",
    reference=conv2d,
    training_cases=(
        _case(32, (56, 56), 64, 64),  # ResNet-50, first stage
        _case(32, (28, 28), 256, 256, stride=2),  # its third stage's first block
        _case(8, (64, 64), 320, 320),  # Stable Diffusion 1.5, first level of the UNet
    ),
    held_out_cases=(
        _case(1, (14, 14), 256, 256),
        _case(3, (33, 29), 35, 51, kernel=5, padding=2),
        _case(4, (128, 128), 320, 320),  # SDXL, first level of the UNet
    ),
    small_cases=(
        _case(2, (5, 7), 3, 6),
        _case(1, (9, 8), 17, 20, stride=2),
        _case(1, (4, 3), 33, 5, kernel=1, padding=0),
    ),
    starting_kernels=("../starts/conv2d.py",),
    kind="convolution",
)
