"""Small-batch linear layer: each program takes some rows of the weight, all rows of x, and walks over the inner dimension."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK_N": 32, "BLOCK_K": 128, "num_warps": 4, "num_stages": 3}
SPACE = {"BLOCK_N": [16, 32, 64, 128], "BLOCK_K": [64, 128, 256, 512], "num_warps": [2, 4, 8], "num_stages": [2, 3, 4, 5]}


@triton.jit
def gemm_decode_kernel(x_ptr, weight_ptr, y_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    rows = tl.arange(0, BLOCK_M)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_mask = rows[:, None] < M
    column_mask = columns[None, :] < N
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        x = tl.load(x_ptr + rows[:, None] * K + inner[None, :], mask=row_mask & (inner[None, :] < K), other=0.0)
        weight = tl.load(weight_ptr + columns[None, :] * K + inner[:, None], mask=(inner[:, None] < K) & column_mask, other=0.0)
        total = tl.dot(x, weight, total)
    tl.store(y_ptr + rows[:, None] * N + columns[None, :], total.to(y_ptr.dtype.element_ty), mask=row_mask & column_mask)


def gemm_decode(x, weight):
    M, K = x.shape
    N = weight.shape[0]
    y = torch.empty((M, N), dtype=x.dtype, device=x.device)
    gemm_decode_kernel[(triton.cdiv(N, CONFIG["BLOCK_N"]),)](
        x, weight, y, M, N, K, BLOCK_M=max(16, triton.next_power_of_2(M)), BLOCK_N=CONFIG["BLOCK_N"], BLOCK_K=CONFIG["BLOCK_K"],
        num_warps=CONFIG["num_warps"], num_stages=CONFIG["num_stages"],
    )  # fmt: skip
    return y
