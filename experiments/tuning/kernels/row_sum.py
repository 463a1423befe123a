# ruff: noqa: N803, D103
"""Sum of each row: some rows per program, a loop over tiles of columns."""

import torch
import triton
import triton.language as tl

CONFIG = {"ROWS": 1, "BLOCK": 1024, "STAGES": 1, "STREAM": 0, "num_warps": 4}
SPACE = {
    "ROWS": [1, 2, 4, 8],
    "BLOCK": [512, 1024, 2048],
    "STAGES": [1, 2, 4],
    "STREAM": [0, 1],
    "num_warps": [1, 2, 4, 8],
}


@triton.jit
def row_sum_kernel(
    x_ptr, y_ptr, n_rows, n_columns,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = rows.to(tl.int64)[:, None] * n_columns
    total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for start in tl.range(0, n_columns, BLOCK, num_stages=STAGES):
        columns = start + tl.arange(0, BLOCK)[None, :]
        mask = (rows[:, None] < n_rows) & (columns < n_columns)
        total += tl.load(x_ptr + first + columns, mask=mask, other=0.0, eviction_policy="evict_first" if STREAM else "")
    tl.store(y_ptr + rows, tl.sum(total, axis=1), mask=rows < n_rows)


def row_sum(x):
    rows, columns = x.shape
    y = torch.empty((rows,), dtype=x.dtype, device=x.device)
    row_sum_kernel[lambda meta: (triton.cdiv(rows, meta["ROWS"]),)](x, y, rows, columns, **CONFIG)
    return y
