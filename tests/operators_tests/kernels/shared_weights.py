"""Rows less their mean weight, by one program that loads the weights anew for each row, and twice."""
# ruff: noqa: N803 - constexpr parameters are upper case

import torch
import triton
import triton.language as tl

CONFIG = {"SIZE": 64}
SPACE = {"SIZE": [64, 128]}


@triton.jit
def shared_weights_kernel(x_ptr, w_ptr, y_ptr, rows, n, SIZE: tl.constexpr):
    columns = tl.arange(0, SIZE)
    for row in range(0, rows):
        w = tl.load(w_ptr + columns, mask=columns < n, other=0.0)  # the same for all rows
        x = tl.load(x_ptr + row * n + columns, mask=columns < n, other=0.0)
        x = tl.where(columns < n, x, 0.0)
        tl.store(y_ptr + row * n + columns, x * w - tl.load(w_ptr + columns, mask=columns < n, other=0.0), mask=columns < n)


def entry(x, w):
    y = torch.empty_like(x)
    size = triton.next_power_of_2(x.shape[1])
    shared_weights_kernel[(1,)](x, w, y, x.shape[0], x.shape[1], SIZE=size)
    return y
