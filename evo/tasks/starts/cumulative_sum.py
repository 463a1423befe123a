"""Cumulative sum: one program per row, block after block with the sum so far."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK": 1024, "num_warps": 4}
SPACE = {"BLOCK": [256, 512, 1024, 2048, 4096], "num_warps": [1, 2, 4, 8]}


@triton.jit
def cumulative_sum_kernel(x_ptr, y_ptr, n_columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    before = tl.zeros((), dtype=tl.float32)
    for start in range(0, n_columns, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        mask = columns < n_columns
        x = tl.load(x_ptr + row * n_columns + columns, mask=mask, other=0.0)
        tl.store(y_ptr + row * n_columns + columns, before + tl.cumsum(x, axis=0), mask=mask)
        before += tl.sum(x, axis=0)


def cumulative_sum(x):
    rows, columns = x.shape
    y = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    cumulative_sum_kernel[(rows,)](x, y, columns, BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"])
    return y
