"""Transposition: one square tile per program."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK": 32, "num_warps": 4}
SPACE = {"BLOCK": [16, 32, 64, 128], "num_warps": [1, 2, 4, 8]}


@triton.jit
def transpose_kernel(x_ptr, y_ptr, rows, columns, BLOCK: tl.constexpr):
    matrix = tl.program_id(2).to(tl.int64) * rows * columns
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(
        x_ptr + matrix + row[:, None] * columns + column[None, :], mask=(row[:, None] < rows) & (column[None, :] < columns)
    )
    y_offsets = matrix + column[:, None] * rows + row[None, :]
    tl.store(y_ptr + y_offsets, tl.trans(x), mask=(column[:, None] < columns) & (row[None, :] < rows))


def transpose(x):
    batch, rows, columns = x.shape
    y = torch.empty((batch, columns, rows), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(columns, CONFIG["BLOCK"]), triton.cdiv(rows, CONFIG["BLOCK"]), batch)
    transpose_kernel[grid](x, y, rows, columns, BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"])
    return y
