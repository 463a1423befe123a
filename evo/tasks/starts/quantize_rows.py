"""Row-wise int8 quantisation: one program per row, the whole row in one block."""

import torch
import triton
import triton.language as tl

CONFIG = {"num_warps": 8}
SPACE = {"num_warps": [1, 2, 4, 8, 16]}


@triton.jit
def quantize_rows_kernel(x_ptr, q_ptr, scales_ptr, n_columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < n_columns
    x = tl.load(x_ptr + row * n_columns + columns, mask=mask, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), axis=0), 1e-10) / 127.0
    level = tl.floor(x / scale + 0.5)
    level = tl.minimum(tl.maximum(level, -127.0), 127.0)
    tl.store(q_ptr + row * n_columns + columns, level.to(tl.int8), mask=mask)
    tl.store(scales_ptr + row, scale)


def quantize_rows(x):
    rows, columns = x.shape
    q = torch.empty((rows, columns), dtype=torch.int8, device=x.device)
    scales = torch.empty((rows,), dtype=torch.float32, device=x.device)
    quantize_rows_kernel[(rows,)](x, q, scales, columns, BLOCK=triton.next_power_of_2(columns), num_warps=CONFIG["num_warps"])
    return q, scales
