"""Tiled FP8 matrix product with scales in the epilogue; sums over BLOCK_K are added up in float32.

Hopper's tensor cores keep about 14 bits of what they add up in FP8 products, over all of K unless told otherwise.
"""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3}
SPACE = {
    "BLOCK_M": [16, 32, 64, 128],
    "BLOCK_N": [32, 64, 128, 256],
    "BLOCK_K": [32, 64, 128],
    "num_warps": [4, 8],
    "num_stages": [2, 3, 4],
}


@triton.jit
def gemm_fp8_kernel(
    a_ptr, b_ptr, a_scale_ptr, b_scale_ptr, y_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_mask = rows[:, None] < M
    column_mask = columns[None, :] < N
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        a = tl.load(a_ptr + rows[:, None] * K + inner[None, :], mask=row_mask & (inner[None, :] < K), other=0)
        b = tl.load(b_ptr + columns[None, :] * K + inner[:, None], mask=(inner[:, None] < K) & column_mask, other=0)
        left, right = a.to(tl.float8e4nv, bitcast=True), b.to(tl.float8e4nv, bitcast=True)
        total = tl.dot(left, right, total, max_num_imprecise_acc=BLOCK_K)
    a_scale = tl.load(a_scale_ptr + rows, mask=rows < M, other=0.0)
    b_scale = tl.load(b_scale_ptr + columns, mask=columns < N, other=0.0)
    y = total * a_scale[:, None] * b_scale[None, :]
    tl.store(y_ptr + rows[:, None] * N + columns[None, :], y.to(y_ptr.dtype.element_ty), mask=row_mask & column_mask)


def gemm_fp8(a, b, a_scale, b_scale):
    M, K = a.shape
    N = b.shape[0]
    y = torch.empty((M, N), dtype=torch.bfloat16, device=a.device)
    grid = (triton.cdiv(M, CONFIG["BLOCK_M"]), triton.cdiv(N, CONFIG["BLOCK_N"]))
    gemm_fp8_kernel[grid](
        a, b, a_scale, b_scale, y, M, N, K, BLOCK_M=CONFIG["BLOCK_M"], BLOCK_N=CONFIG["BLOCK_N"], BLOCK_K=CONFIG["BLOCK_K"],
        num_warps=CONFIG["num_warps"], num_stages=CONFIG["num_stages"],
    )  # fmt: skip
    return y
