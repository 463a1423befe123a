# ruff: noqa: N803, D103
"""Residual addition and RMS normalisation in two passes over tiles of some rows."""

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
def rms_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, y_ptr, total_ptr, n_rows, hidden, eps,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = rows.to(tl.int64)[:, None] * hidden
    row_mask = rows[:, None] < n_rows
    squares = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for start in tl.range(0, hidden, BLOCK, num_stages=STAGES):
        columns = start + tl.arange(0, BLOCK)[None, :]
        mask = row_mask & (columns < hidden)
        policy: tl.constexpr = "evict_last" if KEEP else ""
        x = tl.load(x_ptr + first + columns, mask=mask, other=0.0, eviction_policy=policy).to(tl.float32)
        total = x + tl.load(residual_ptr + first + columns, mask=mask, other=0.0, eviction_policy=policy).to(tl.float32)
        total = total.to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + first + columns, total, mask=mask)
        squares += total.to(tl.float32) * total.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(squares, axis=1) / hidden + eps)
    for start in tl.range(0, hidden, BLOCK, num_stages=STAGES):
        columns = start + tl.arange(0, BLOCK)[None, :]
        mask = row_mask & (columns < hidden)
        # Not what was stored: another thread may have stored it.
        x = tl.load(x_ptr + first + columns, mask=mask, other=0.0).to(tl.float32)
        total = x + tl.load(residual_ptr + first + columns, mask=mask, other=0.0).to(tl.float32)
        total = total.to(total_ptr.dtype.element_ty).to(tl.float32)
        weight = tl.load(weight_ptr + columns, mask=columns < hidden, other=0.0).to(tl.float32)
        tl.store(y_ptr + first + columns, (total * scale[:, None] * weight).to(y_ptr.dtype.element_ty), mask=mask)


def rms_norm(x, residual, weight, eps):
    rows, hidden = x.shape
    y = torch.empty((rows, hidden), dtype=x.dtype, device=x.device)
    total = torch.empty((rows, hidden), dtype=x.dtype, device=x.device)
    rms_norm_kernel[lambda meta: (triton.cdiv(rows, meta["ROWS"]),)](x, residual, weight, y, total, rows, hidden, eps, **CONFIG)
    return y, total
