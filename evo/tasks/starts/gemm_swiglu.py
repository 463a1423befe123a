"""Two tiled matrix products that share their left operand, with SwiGLU in the epilogue."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3}
SPACE = {
    "BLOCK_M": [16, 32, 64, 128],
    "BLOCK_N": [32, 64, 128],
    "BLOCK_K": [32, 64, 128],
    "num_warps": [4, 8],
    "num_stages": [2, 3, 4],
}


@triton.jit
def gemm_swiglu_kernel(
    x_ptr, gate_ptr, up_ptr, y_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_mask = rows[:, None] < M
    column_mask = columns[None, :] < N
    gate = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    up = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        x = tl.load(x_ptr + rows[:, None] * K + inner[None, :], mask=row_mask & (inner[None, :] < K), other=0.0)
        offsets = inner[:, None] * N + columns[None, :]
        mask = (inner[:, None] < K) & column_mask
        gate = tl.dot(x, tl.load(gate_ptr + offsets, mask=mask, other=0.0), gate)
        up = tl.dot(x, tl.load(up_ptr + offsets, mask=mask, other=0.0), up)
    y = gate * tl.sigmoid(gate) * up
    tl.store(y_ptr + rows[:, None] * N + columns[None, :], y.to(y_ptr.dtype.element_ty), mask=row_mask & column_mask)


def gemm_swiglu(x, gate, up):
    M, K = x.shape
    N = gate.shape[1]
    y = torch.empty((M, N), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(M, CONFIG["BLOCK_M"]), triton.cdiv(N, CONFIG["BLOCK_N"]))
    gemm_swiglu_kernel[grid](
        x, gate, up, y, M, N, K, BLOCK_M=CONFIG["BLOCK_M"], BLOCK_N=CONFIG["BLOCK_N"], BLOCK_K=CONFIG["BLOCK_K"],
        num_warps=CONFIG["num_warps"], num_stages=CONFIG["num_stages"],
    )  # fmt: skip
    return y
