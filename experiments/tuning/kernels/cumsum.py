# ruff: noqa: N803, D103
"""Prefix sums of each row: tiles from left to right, the sum so far carried along."""

import torch
import triton
import triton.language as tl

CONFIG = {"ROWS": 1, "BLOCK": 1024, "STAGES": 1, "STREAM": 0, "num_warps": 4}
SPACE = {
    "ROWS": [1, 2, 4],
    "BLOCK": [512, 1024, 2048, 4096],
    "STAGES": [1, 2, 3],
    "STREAM": [0, 1],
    "num_warps": [1, 2, 4, 8],
}


@triton.jit
def cumsum_kernel(
    x_ptr, y_ptr, n_rows, n_columns,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = rows.to(tl.int64)[:, None] * n_columns
    carried = tl.zeros((ROWS, 1), dtype=tl.float32)
    for start in tl.range(0, n_columns, BLOCK, num_stages=STAGES):
        columns = start + tl.arange(0, BLOCK)[None, :]
        mask = (rows[:, None] < n_rows) & (columns < n_columns)
        x = tl.load(x_ptr + first + columns, mask=mask, other=0.0, eviction_policy="evict_first" if STREAM else "")
        tl.store(y_ptr + first + columns, tl.cumsum(x, axis=1) + carried, mask=mask)
        # A column, not a vector: Triton 3.6 cannot compile a sum that a loop carries and also uses (its pass for thread locality).
        carried += tl.sum(x, axis=1, keep_dims=True)


def cumsum(x):
    rows, columns = x.shape
    y = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    cumsum_kernel[lambda meta: (triton.cdiv(rows, meta["ROWS"]),)](x, y, rows, columns, **CONFIG)
    return y
