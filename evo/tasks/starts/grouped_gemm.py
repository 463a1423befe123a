"""Grouped product: more programs than there can be tiles of rows; each finds its expert by counting the tiles of those before."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 32, "num_warps": 4, "num_stages": 3}
SPACE = {
    "BLOCK_M": [16, 32, 64, 128],
    "BLOCK_N": [32, 64, 128, 256],
    "BLOCK_K": [32, 64, 128],
    "num_warps": [4, 8],
    "num_stages": [2, 3, 4],
}


@triton.jit
def grouped_gemm_kernel(
    x_ptr, weights_ptr, starts_ptr, y_ptr, experts, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    tile = tl.program_id(0)
    expert, first, end, tiles_before = 0, 0, 0, 0
    for candidate in range(0, experts):
        begins = tl.load(starts_ptr + candidate)
        ends = tl.load(starts_ptr + candidate + 1)
        tiles = tl.cdiv(ends - begins, BLOCK_M)
        mine = (tile >= tiles_before) & (tile < tiles_before + tiles)
        expert = tl.where(mine, candidate, expert)
        first = tl.where(mine, begins + (tile - tiles_before) * BLOCK_M, first)
        end = tl.where(mine, ends, end)
        tiles_before += tiles
    if first < end:
        rows = first + tl.arange(0, BLOCK_M)
        columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        row_mask = rows[:, None] < end
        column_mask = columns[None, :] < N
        weight_ptr = weights_ptr + expert.to(tl.int64) * K * N
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for start in range(0, K, BLOCK_K):
            inner = start + tl.arange(0, BLOCK_K)
            x = tl.load(x_ptr + rows[:, None] * K + inner[None, :], mask=row_mask & (inner[None, :] < K), other=0.0)
            weight = tl.load(
                weight_ptr + inner[:, None] * N + columns[None, :], mask=(inner[:, None] < K) & column_mask, other=0.0
            )
            total = tl.dot(x, weight, total)
        y_ptrs = y_ptr + rows[:, None] * N + columns[None, :]
        tl.store(y_ptrs, total.to(y_ptr.dtype.element_ty), mask=row_mask & column_mask)


def grouped_gemm(x, weights, starts):
    rows, K = x.shape
    experts, _, N = weights.shape
    y = torch.empty((rows, N), dtype=x.dtype, device=x.device)
    # Every expert has at most one tile that is not full.
    grid = (triton.cdiv(rows, CONFIG["BLOCK_M"]) + experts, triton.cdiv(N, CONFIG["BLOCK_N"]))
    grouped_gemm_kernel[grid](
        x, weights, starts, y, experts, N, K, BLOCK_M=CONFIG["BLOCK_M"], BLOCK_N=CONFIG["BLOCK_N"], BLOCK_K=CONFIG["BLOCK_K"],
        num_warps=CONFIG["num_warps"], num_stages=CONFIG["num_stages"],
    )  # fmt: skip
    return y
