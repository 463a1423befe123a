"""A depthwise convolution of square windows without padding: each program makes a run of pixels of one channel."""

import torch
import triton
import triton.language as tl


@triton.jit
def depthwise_kernel(
    x_ptr, weight_ptr, y_ptr, channels, height, width, out_height, out_width, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    plane = tl.program_id(0).to(tl.int64)
    channel = plane % channels
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < out_height * out_width
    corner = x_ptr + plane * height * width + (at // out_width) * width + at % out_width
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for tap in tl.static_range(SIZE * SIZE):
        weight = tl.load(weight_ptr + channel * SIZE * SIZE + tap)
        total += weight * tl.load(corner + (tap // SIZE) * width + tap % SIZE, mask=inside, other=0.0)
    tl.store(y_ptr + plane * out_height * out_width + at, total, mask=inside)


def forward(x, weight):
    batch, channels, height, width = x.shape
    size = weight.shape[2]
    out_height, out_width = height - size + 1, width - size + 1
    y = torch.empty((batch, channels, out_height, out_width), dtype=x.dtype, device=x.device)
    grid = (batch * channels, triton.cdiv(out_height * out_width, 1024))
    depthwise_kernel[grid](x, weight, y, channels, height, width, out_height, out_width, SIZE=size, BLOCK=1024, num_warps=4)
    return y
