"""Softmax backward: one program per row, the whole row in one block."""

import torch
import triton
import triton.language as tl

CONFIG = {"num_warps": 8}
SPACE = {"num_warps": [1, 2, 4, 8, 16]}


@triton.jit
def softmax_backward_kernel(dy_ptr, y_ptr, dx_ptr, n_columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < n_columns
    dy = tl.load(dy_ptr + row * n_columns + columns, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + row * n_columns + columns, mask=mask, other=0.0).to(tl.float32)
    product = dy * y
    dx = product - y * tl.sum(product, axis=0)
    tl.store(dx_ptr + row * n_columns + columns, dx.to(dx_ptr.dtype.element_ty), mask=mask)


def softmax_backward(dy, y):
    rows, columns = y.shape
    dx = torch.empty((rows, columns), dtype=y.dtype, device=y.device)
    softmax_backward_kernel[(rows,)](dy, y, dx, columns, BLOCK=triton.next_power_of_2(columns), num_warps=CONFIG["num_warps"])
    return dx
