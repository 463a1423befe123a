"""One-dimensional averages over eight neighbours, with four zeros before and after each row."""

import torch
import triton
import triton.language as tl

SIZE, PADDING = 8, 4


@triton.jit
def average_pool_kernel(x_ptr, y_ptr, length, out_length, SIZE: tl.constexpr, PADDING: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for step in tl.static_range(SIZE):
        source = at + step - PADDING
        total += tl.load(x_ptr + row * length + source, mask=(source >= 0) & (source < length), other=0.0)
    tl.store(y_ptr + row * out_length + at, total / SIZE, mask=at < out_length)


def forward(x):
    batch, channels, length = x.shape
    out_length = length + 2 * PADDING - SIZE + 1
    y = torch.empty((batch, channels, out_length), dtype=x.dtype, device=x.device)
    grid = (batch * channels, triton.cdiv(out_length, 2048))
    average_pool_kernel[grid](x, y, length, out_length, SIZE=SIZE, PADDING=PADDING, BLOCK=2048, num_warps=4)
    return y
