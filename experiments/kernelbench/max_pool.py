"""Two-dimensional maxima over windows of four by four, with one row and column of padding around each plane."""

import torch
import triton
import triton.language as tl

SIZE, PADDING = 4, 1


@triton.jit
def max_pool_kernel(
    x_ptr, y_ptr, height, width, out_height, out_width, SIZE: tl.constexpr, PADDING: tl.constexpr, BLOCK: tl.constexpr
):
    plane = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < out_height * out_width
    highest = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    for tap in tl.static_range(SIZE * SIZE):
        row = at // out_width + tap // SIZE - PADDING
        column = at % out_width + tap % SIZE - PADDING
        there = inside & (row >= 0) & (row < height) & (column >= 0) & (column < width)
        x = tl.load(x_ptr + plane * height * width + row * width + column, mask=there, other=float("-inf"))
        highest = tl.maximum(highest, x)
    tl.store(y_ptr + plane * out_height * out_width + at, highest, mask=inside)


def forward(x):
    batch, channels, height, width = x.shape
    out_height, out_width = height + 2 * PADDING - SIZE + 1, width + 2 * PADDING - SIZE + 1
    y = torch.empty((batch, channels, out_height, out_width), dtype=x.dtype, device=x.device)
    grid = (batch * channels, triton.cdiv(out_height * out_width, 1024))
    max_pool_kernel[grid](x, y, height, width, out_height, out_width, SIZE=SIZE, PADDING=PADDING, BLOCK=1024, num_warps=4)
    return y
