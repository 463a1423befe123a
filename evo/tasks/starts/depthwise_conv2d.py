"""Depthwise convolution: one program per image and channel and block of pixels, which loads x once per tap."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK": 512, "num_warps": 4}
SPACE = {"BLOCK": [128, 256, 512, 1024, 2048], "num_warps": [1, 2, 4, 8]}


@triton.jit
def depthwise_conv2d_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, channels, height, width, TAPS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    channel = tl.program_id(1) % channels
    plane = tl.program_id(1).to(tl.int64) * height * width
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = pixel // width
    column = pixel % width
    total = tl.zeros((BLOCK,), dtype=tl.float32) + tl.load(bias_ptr + channel).to(tl.float32)
    for r in tl.static_range(TAPS):
        for s in tl.static_range(TAPS):
            y_row = row + r - TAPS // 2
            y_column = column + s - TAPS // 2
            inside = (y_row >= 0) & (y_row < height) & (y_column >= 0) & (y_column < width)
            x = tl.load(x_ptr + plane + y_row * width + y_column, mask=inside, other=0.0).to(tl.float32)
            total += tl.load(weight_ptr + (channel * TAPS + r) * TAPS + s).to(tl.float32) * x
    tl.store(y_ptr + plane + pixel, total.to(y_ptr.dtype.element_ty), mask=row < height)


def depthwise_conv2d(x, weight, bias):
    images, channels, height, width = x.shape
    y = torch.empty((images, channels, height, width), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(height * width, CONFIG["BLOCK"]), images * channels)
    depthwise_conv2d_kernel[grid](
        x, weight, bias, y, channels, height, width, TAPS=weight.shape[1], BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"]
    )
    return y
