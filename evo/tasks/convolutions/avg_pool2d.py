"""Average pooling, where zeros outside of the image count, in float16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def avg_pool2d(x: torch.Tensor, kernel: int, stride: int, padding: int) -> torch.Tensor:
    """Means of the windows, in at least float32."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return torch.nn.functional.avg_pool2d(wide, kernel, stride, padding).to(x.dtype)


def _case(images: int, channels: int, height: int, width: int, kernel: int, stride: int, padding: int) -> Case:
    x = TensorSpec((images, channels, height, width), "float16")
    out_height, out_width = ((size + 2 * padding - kernel) // stride + 1 for size in (height, width))
    outputs = images * channels * out_height * out_width
    return Case(
        f"{images}x{channels}x{height}x{width}_k{kernel}_s{stride}_p{padding}",
        (x, kernel, stride, padding),
        x.nbytes + 2 * outputs,
        outputs * (kernel * kernel + 1),
    )


TASK = Task(
    name="avg_pool2d",
    description=(
        "Average pooling. x is contiguous float16 [images, channels, height, width]; kernel, stride and padding are ints, "
        "padding at most kernel // 2. y[n, c, i, j] is the sum of x[n, c, i * stride - padding + r, j * stride - padding + s] "
        "over r and s from 0 to kernel - 1, where x is 0 outside of the image, divided by kernel^2. The result is a new "
        "contiguous float16 tensor [images, channels, (height + 2 * padding - kernel) // stride + 1, (width + 2 * padding - "
        "kernel) // stride + 1]. Accumulate in float32."
    ),
    entry="avg_pool2d",
    reference=avg_pool2d,
    training_cases=(
        _case(64, 128, 56, 56, 2, 2, 0),  # DenseNet-121, first transition
        _case(64, 288, 35, 35, 3, 1, 1),  # Inception v3, its 35 x 35 blocks
        _case(64, 2048, 7, 7, 7, 1, 0),  # ResNet-50, global pooling
    ),
    held_out_cases=(_case(1, 512, 14, 14, 2, 2, 0), _case(3, 33, 29, 31, 5, 3, 2), _case(256, 128, 56, 56, 2, 2, 0)),
    small_cases=(_case(2, 3, 5, 7, 3, 2, 1), _case(1, 5, 9, 4, 2, 2, 0), _case(1, 4, 11, 17, 5, 1, 2)),
    starting_kernels=("../starts/avg_pool2d.py",),
    kind="pooling",
)
