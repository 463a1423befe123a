# ruff: noqa: N803, D103
"""Row-wise int8 quantisation in two passes over tiles of some rows: largest magnitudes, then levels."""

import torch
import triton
import triton.language as tl

CONFIG = {"ROWS": 1, "BLOCK": 1024, "STAGES": 1, "KEEP": 0, "num_warps": 4}
SPACE = {
    "ROWS": [1, 2, 4],
    "BLOCK": [512, 1024, 2048, 4096],
    "STAGES": [1, 2, 3],
    "KEEP": [0, 1],
    "num_warps": [2, 4, 8, 16],
}


@triton.jit
def quantize_rows_kernel(
    x_ptr, q_ptr, scales_ptr, n_rows, n_columns,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = rows.to(tl.int64)[:, None] * n_columns
    largest = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for start in tl.range(0, n_columns, BLOCK, num_stages=STAGES):
        columns = start + tl.arange(0, BLOCK)[None, :]
        mask = (rows[:, None] < n_rows) & (columns < n_columns)
        x = tl.load(x_ptr + first + columns, mask=mask, other=0.0, eviction_policy="evict_last" if KEEP else "")
        largest = tl.maximum(largest, tl.abs(x.to(tl.float32)))
    scale = tl.maximum(tl.max(largest, axis=1), 1e-10) / 127.0
    for start in tl.range(0, n_columns, BLOCK, num_stages=STAGES):
        columns = start + tl.arange(0, BLOCK)[None, :]
        mask = (rows[:, None] < n_rows) & (columns < n_columns)
        x = tl.load(x_ptr + first + columns, mask=mask, other=0.0, eviction_policy="evict_first" if KEEP else "")
        level = tl.floor(x.to(tl.float32) / scale[:, None] + 0.5)
        level = tl.minimum(tl.maximum(level, -127.0), 127.0)
        tl.store(q_ptr + first + columns, level.to(tl.int8), mask=mask)
    tl.store(scales_ptr + rows, scale, mask=rows < n_rows)


def quantize_rows(x):
    rows, columns = x.shape
    q = torch.empty((rows, columns), dtype=torch.int8, device=x.device)
    scales = torch.empty((rows,), dtype=torch.float32, device=x.device)
    quantize_rows_kernel[lambda meta: (triton.cdiv(rows, meta["ROWS"]),)](x, q, scales, rows, columns, **CONFIG)
    return q, scales
