# ruff: noqa: N803, D103
"""Sum of each column: parts of the rows are summed side by side, a second kernel adds the parts."""

import torch
import triton
import triton.language as tl

CONFIG = {"PARTS": 16, "BLOCK_M": 32, "BLOCK_N": 64, "STAGES": 1, "num_warps": 4}
SPACE = {
    "PARTS": [4, 16, 64],
    "BLOCK_M": [16, 32, 64],
    "BLOCK_N": [32, 64, 128],
    "STAGES": [1, 2, 3],
    "num_warps": [2, 4, 8],
}


@triton.jit
def column_sum_kernel(
    x_ptr, y_ptr, n_rows, n_columns,
    PARTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    size = tl.cdiv(n_rows, PARTS)
    begin = tl.program_id(1) * size
    end = min(begin + size, n_rows)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in tl.range(begin, end, BLOCK_M, num_stages=STAGES):
        rows = start + tl.arange(0, BLOCK_M)[:, None]
        mask = (rows < end) & (columns[None, :] < n_columns)
        total += tl.load(x_ptr + rows.to(tl.int64) * n_columns + columns[None, :], mask=mask, other=0.0)
    tl.store(y_ptr + tl.program_id(1) * n_columns + columns, tl.sum(total, axis=0), mask=columns < n_columns)


def column_sum(x):
    rows, columns = x.shape
    parts = torch.empty((CONFIG["PARTS"], columns), dtype=x.dtype, device=x.device)
    y = torch.empty((columns,), dtype=x.dtype, device=x.device)
    column_sum_kernel[(triton.cdiv(columns, CONFIG["BLOCK_N"]), CONFIG["PARTS"])](x, parts, rows, columns, **CONFIG)
    column_sum_kernel[(triton.cdiv(columns, 32), 1)](
        parts, y, CONFIG["PARTS"], columns, PARTS=1, BLOCK_M=16, BLOCK_N=32, STAGES=1, num_warps=2
    )
    return y
