# ruff: noqa: N803, D103
"""Row-wise softmax in two passes over tiles of the row: running maximum and sum, then the result."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK": 1024, "STAGES": 1, "KEEP": 0, "num_warps": 4}
SPACE = {
    "BLOCK": [256, 512, 1024, 2048, 4096, 8192],
    "STAGES": [1, 2, 3, 4],
    "KEEP": [0, 1],
    "num_warps": [1, 2, 4, 8, 16],
}


@triton.jit
def softmax_kernel(x_ptr, y_ptr, n_columns, BLOCK: tl.constexpr, STAGES: tl.constexpr, KEEP: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n_columns
    highest = tl.full((BLOCK,), -1e38, dtype=tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in tl.range(0, n_columns, BLOCK, num_stages=STAGES):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(
            x_ptr + row + columns, mask=columns < n_columns, other=float("-inf"), eviction_policy="evict_last" if KEEP else ""
        ).to(tl.float32)
        new_highest = tl.maximum(highest, x)
        total = total * tl.exp(highest - new_highest) + tl.exp(x - new_highest)
        highest = new_highest
    peak = tl.max(highest, axis=0)
    whole = tl.sum(total * tl.exp(highest - peak), axis=0)
    for start in tl.range(0, n_columns, BLOCK, num_stages=STAGES):
        columns = start + tl.arange(0, BLOCK)
        mask = columns < n_columns
        x = tl.load(x_ptr + row + columns, mask=mask, other=0.0, eviction_policy="evict_first" if KEEP else "").to(tl.float32)
        tl.store(y_ptr + row + columns, (tl.exp(x - peak) / whole).to(y_ptr.dtype.element_ty), mask=mask)


def softmax(x):
    rows, columns = x.shape
    y = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    softmax_kernel[(rows,)](x, y, columns, **CONFIG)
    return y
