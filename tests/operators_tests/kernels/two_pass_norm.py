"""Layer normalisation without a weight: a loop for the mean, one for the variance, one for the output."""
# ruff: noqa: N803 - constexpr parameters are upper case

import torch
import triton
import triton.language as tl


@triton.jit
def two_pass_norm(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=0.0).to(tl.float32)
        total += x  # lane by lane
    mean = tl.sum(total, axis=0) / n
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=0.0).to(tl.float32)
        x = tl.where(cols < n, x - mean, 0.0)
        squares += x * x
    # The biased variance.
    scale = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / n + 1e-5)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=0.0).to(tl.float32)
        tl.store(y_ptr + row * n + cols, (x - mean) * scale, mask=cols < n)


def entry(x):
    y = torch.empty_like(x)
    two_pass_norm[(x.shape[0],)](x, y, x.shape[1], BLOCK=16)
    return y
