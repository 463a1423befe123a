# ruff: noqa: N803, D103
"""Matrix times vector, as in decoding one token: some rows per program, a loop over tiles of columns."""

import torch
import triton
import triton.language as tl

CONFIG = {"ROWS": 4, "BLOCK": 512, "STAGES": 1, "num_warps": 4}
SPACE = {
    "ROWS": [1, 2, 4, 8, 16, 32],
    "BLOCK": [256, 512, 1024, 2048],
    "STAGES": [1, 2, 4],
    "num_warps": [1, 2, 4, 8],
}


@triton.jit
def matvec_kernel(w_ptr, x_ptr, y_ptr, n_rows, n_columns, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = rows.to(tl.int64)[:, None] * n_columns
    total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for start in tl.range(0, n_columns, BLOCK, num_stages=STAGES):
        columns = start + tl.arange(0, BLOCK)[None, :]
        mask = (rows[:, None] < n_rows) & (columns < n_columns)
        w = tl.load(w_ptr + first + columns, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        total += w * tl.load(x_ptr + columns, mask=columns < n_columns, other=0.0).to(tl.float32)
    tl.store(y_ptr + rows, tl.sum(total, axis=1).to(y_ptr.dtype.element_ty), mask=rows < n_rows)


def matvec(w, x):
    rows, columns = w.shape
    y = torch.empty((rows,), dtype=w.dtype, device=w.device)
    matvec_kernel[lambda meta: (triton.cdiv(rows, meta["ROWS"]),)](w, x, y, rows, columns, **CONFIG)
    return y
