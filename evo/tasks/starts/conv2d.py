"""Convolution as an implicit matrix product: rows are output pixels, columns filters, the sum runs over taps and channels."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 3}
SPACE = {
    "BLOCK_M": [32, 64, 128, 256],
    "BLOCK_N": [32, 64, 128],
    "BLOCK_K": [16, 32, 64],
    "num_warps": [4, 8],
    "num_stages": [2, 3, 4],
}


@triton.jit
def conv2d_kernel(
    x_ptr, weight_ptr, y_ptr, pixels, height, width, channels, out_height, out_width, filters, stride, padding,
    TAPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    pixel = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    image = pixel // (out_height * out_width)
    top = (pixel // out_width) % out_height * stride - padding
    left = pixel % out_width * stride - padding
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for tap in range(0, TAPS * TAPS):
        row = top + tap // TAPS
        column = left + tap % TAPS
        inside = (pixel < pixels) & (row >= 0) & (row < height) & (column >= 0) & (column < width)
        x_rows = ((image * height + row) * width + column) * channels
        for start in range(0, channels, BLOCK_K):
            inner = start + tl.arange(0, BLOCK_K)
            x = tl.load(x_ptr + x_rows[:, None] + inner[None, :], mask=inside[:, None] & (inner[None, :] < channels), other=0.0)
            weight = tl.load(
                weight_ptr + (columns[None, :] * (TAPS * TAPS) + tap) * channels + inner[:, None],
                mask=(columns[None, :] < filters) & (inner[:, None] < channels),
                other=0.0,
            )
            total = tl.dot(x, weight, total)
    mask = (pixel[:, None] < pixels) & (columns[None, :] < filters)
    tl.store(y_ptr + pixel[:, None] * filters + columns[None, :], total.to(y_ptr.dtype.element_ty), mask=mask)


def conv2d(x, weight, stride, padding):
    images, height, width, channels = x.shape
    filters, taps = weight.shape[0], weight.shape[1]
    out_height = (height + 2 * padding - taps) // stride + 1
    out_width = (width + 2 * padding - taps) // stride + 1
    y = torch.empty((images, out_height, out_width, filters), dtype=x.dtype, device=x.device)
    pixels = images * out_height * out_width
    grid = (triton.cdiv(pixels, CONFIG["BLOCK_M"]), triton.cdiv(filters, CONFIG["BLOCK_N"]))
    conv2d_kernel[grid](
        x, weight, y, pixels, height, width, channels, out_height, out_width, filters, stride, padding,
        TAPS=taps, BLOCK_M=CONFIG["BLOCK_M"], BLOCK_N=CONFIG["BLOCK_N"], BLOCK_K=CONFIG["BLOCK_K"],
        num_warps=CONFIG["num_warps"], num_stages=CONFIG["num_stages"],
    )  # fmt: skip
    return y
