"""Normalisation of rows whose variance is the mean of squares minus the squared mean."""
# ruff: noqa: N803 - constexpr parameters are upper case

import torch
import triton
import triton.language as tl


@triton.jit
def row_moments(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n
    x = tl.load(x_ptr + row * n + columns, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / n
    squares = tl.sum(x * x, axis=0) / n
    variance = squares - mean * mean  # of the row
    tl.store(y_ptr + row * n + columns, (x - mean) / tl.sqrt(variance + 1e-5), mask=mask)


def entry(x):
    y = torch.empty_like(x)
    row_moments[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
