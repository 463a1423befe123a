# ruff: noqa: N803, N806, D103
"""Transposes a matrix tile by tile; tiles are visited in groups that share columns."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK_M": 32, "BLOCK_N": 32, "GROUP": 1, "STREAM": 0, "num_warps": 4}
SPACE = {
    "BLOCK_M": [16, 32, 64, 128],
    "BLOCK_N": [16, 32, 64, 128],
    "GROUP": [1, 8],
    "STREAM": [0, 1],
    "num_warps": [1, 2, 4, 8],
}


@triton.jit
def transpose_kernel(x_ptr, y_ptr, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr, STREAM: tl.constexpr):
    pid = tl.program_id(0)
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    first_m = pid // (GROUP * tiles_n) * GROUP
    group_rows = min(tiles_m - first_m, GROUP)
    rows = (first_m + (pid % (GROUP * tiles_n)) % group_rows) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = (pid % (GROUP * tiles_n)) // group_rows * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (rows[:, None] < M) & (columns[None, :] < N)
    policy: tl.constexpr = "evict_first" if STREAM else ""
    x = tl.load(x_ptr + rows.to(tl.int64)[:, None] * N + columns[None, :], mask=mask, eviction_policy=policy)
    out = y_ptr + columns.to(tl.int64)[:, None] * M + rows[None, :]
    tl.store(out, tl.trans(x), mask=(columns[:, None] < N) & (rows[None, :] < M))


def transpose(x):
    M, N = x.shape
    y = torch.empty((N, M), dtype=x.dtype, device=x.device)
    transpose_kernel[lambda meta: (triton.cdiv(M, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"]),)](x, y, M, N, **CONFIG)
    return y
