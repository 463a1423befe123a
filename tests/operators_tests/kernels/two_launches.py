"""A scaled sum of a matrix and a matrix with any strides, then the squares of it: two kernels, one after the other."""
# ruff: noqa: N803 - constexpr parameters are upper case

import torch
import triton
import triton.language as tl


@triton.jit
def scale_kernel(x_ptr, other_ptr, y_ptr, stride_row, stride_column, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n
    x = tl.load(x_ptr + row * n + columns, mask=mask, other=0.0)
    other = tl.load(other_ptr + row * stride_row + columns * stride_column, mask=mask, other=0.0)
    # The first result.
    tl.store(y_ptr + row * n + columns, 2.0 * x + other, mask=mask)


@triton.jit
def square_kernel(y_ptr, z_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    x = tl.load(y_ptr + row * n + columns, mask=columns < n, other=0.0)
    tl.store(z_ptr + row * n + columns, x * x, mask=columns < n)  # the second


def entry(x, other):
    rows, n = x.shape
    other = other.contiguous()
    other_rows, other_n = other.shape
    assert (other_rows, other_n) == (rows, n)
    y = torch.empty((rows, n), dtype=torch.float16, device=x.device)
    z = torch.empty((rows, n), dtype=torch.float32, device=x.device).contiguous()
    scale_kernel[(rows,)](x, other, y, other.stride(0), other.stride(1), n, BLOCK=triton.next_power_of_2(n))
    square_kernel[(rows,)](y, z, n, BLOCK=triton.next_power_of_2(n))
    return y, z
