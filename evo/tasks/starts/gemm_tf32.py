"""Tiled matrix product in TF32."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 32, "num_warps": 4, "num_stages": 3}
SPACE = {
    "BLOCK_M": [16, 32, 64, 128],
    "BLOCK_N": [32, 64, 128, 256],
    "BLOCK_K": [16, 32, 64],
    "num_warps": [4, 8],
    "num_stages": [2, 3, 4],
}


@triton.jit
def gemm_tf32_kernel(a_ptr, b_ptr, y_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_mask = rows[:, None] < M
    column_mask = columns[None, :] < N
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        a = tl.load(a_ptr + rows[:, None] * K + inner[None, :], mask=row_mask & (inner[None, :] < K), other=0.0)
        b = tl.load(b_ptr + inner[:, None] * N + columns[None, :], mask=(inner[:, None] < K) & column_mask, other=0.0)
        total = tl.dot(a, b, total, input_precision="tf32")
    tl.store(y_ptr + rows[:, None] * N + columns[None, :], total, mask=row_mask & column_mask)


def gemm_tf32(a, b):
    M, K = a.shape
    N = b.shape[1]
    y = torch.empty((M, N), dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(M, CONFIG["BLOCK_M"]), triton.cdiv(N, CONFIG["BLOCK_N"]))
    gemm_tf32_kernel[grid](
        a, b, y, M, N, K, BLOCK_M=CONFIG["BLOCK_M"], BLOCK_N=CONFIG["BLOCK_N"], BLOCK_K=CONFIG["BLOCK_K"],
        num_warps=CONFIG["num_warps"], num_stages=CONFIG["num_stages"],
    )  # fmt: skip
    return y
