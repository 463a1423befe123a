"""Maximum pooling with the positions of the maxima, in float16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec
from evo.tasks.draws import DEFAULT_VARIATIONS, Variation


def max_pool2d(x: torch.Tensor, kernel: int, stride: int, padding: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Maxima of the windows, and where they are: row · width + column in the image, the first of equal ones."""
    width = x.shape[3]
    padded = torch.nn.functional.pad(x, (padding,) * 4, value=float("-inf"))
    windows = padded.unfold(2, kernel, stride).unfold(3, kernel, stride).flatten(4)
    highest = windows.amax(dim=-1)
    taps = torch.arange(kernel * kernel, device=x.device)
    first = torch.where(windows == highest[..., None], taps, kernel * kernel).amin(dim=-1)
    rows = (
        torch.arange(highest.shape[2], device=x.device)[:, None] * stride
        - padding
        + torch.div(first, kernel, rounding_mode="floor")
    )
    columns = torch.arange(highest.shape[3], device=x.device)[None, :] * stride - padding + first % kernel
    return highest.contiguous(), (rows * width + columns).to(torch.int32)


def _case(images: int, channels: int, height: int, width: int, kernel: int, stride: int, padding: int) -> Case:
    x = TensorSpec((images, channels, height, width), "float16")
    out_height, out_width = ((size + 2 * padding - kernel) // stride + 1 for size in (height, width))
    outputs = images * channels * out_height * out_width
    return Case(
        f"{images}x{channels}x{height}x{width}_k{kernel}_s{stride}_p{padding}",
        (x, kernel, stride, padding),
        x.nbytes + 6 * outputs,
        outputs * kernel * kernel,
    )


TASK = Task(
    name="max_pool2d",
    description=(
        "Maximum pooling with positions. x is contiguous float16 [images, channels, height, width]; kernel, stride and padding "
        "are ints, padding at most kernel // 2. Window (i, j) covers rows i * stride - padding + r and columns j * stride - "
        "padding + s for r and s from 0 to kernel - 1, as far as they lie in the image. Returns the tuple (y, places) of new "
        "contiguous tensors [images, channels, (height + 2 * padding - kernel) // stride + 1, (width + 2 * padding - kernel) //"
        " stride + 1]: y, float16, the maximum of each window; places, int32, its row * width + column in the image, of equal "
        "elements that of the first in row-major order."
    ),
    entry="max_pool2d",
    reference=max_pool2d,
    training_cases=(
        _case(64, 64, 112, 112, 3, 2, 1),  # ResNet-50, after its first convolution
        _case(32, 64, 224, 224, 2, 2, 0),  # VGG-16, first pooling
        _case(64, 192, 56, 56, 3, 2, 1),  # GoogLeNet, second pooling
    ),
    held_out_cases=(_case(1, 512, 14, 14, 2, 2, 0), _case(3, 33, 29, 31, 5, 3, 2), _case(256, 64, 112, 112, 3, 2, 1)),
    small_cases=(_case(2, 3, 5, 7, 3, 2, 1), _case(1, 5, 9, 4, 2, 2, 0), _case(1, 4, 11, 17, 5, 1, 2)),
    starting_kernels=("../starts/max_pool2d.py",),
    variations=DEFAULT_VARIATIONS | {Variation.HUGE},
    kind="pooling",
)
