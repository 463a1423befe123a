"""4-bit linear layer: low and high halves of the packed bytes are two products, with the even and the odd columns of x."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_P": 32, "num_warps": 4, "num_stages": 3}
SPACE = {
    "BLOCK_M": [16, 32, 64, 128],
    "BLOCK_N": [32, 64, 128],
    "BLOCK_P": [16, 32, 64, 128],
    "num_warps": [4, 8],
    "num_stages": [2, 3, 4],
}


@triton.jit
def gemm_int4_kernel(
    x_ptr, packed_ptr, scales_ptr, y_ptr, M, N, K, groups, pairs_per_group,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_mask = rows[:, None] < M
    column_mask = columns[None, :] < N
    pairs_total = K // 2
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, pairs_total, BLOCK_P):
        pairs = start + tl.arange(0, BLOCK_P)
        x_mask = row_mask & (pairs[None, :] < pairs_total)
        even = tl.load(x_ptr + rows[:, None] * K + 2 * pairs[None, :], mask=x_mask, other=0.0)
        odd = tl.load(x_ptr + rows[:, None] * K + 2 * pairs[None, :] + 1, mask=x_mask, other=0.0)
        mask = (pairs[:, None] < pairs_total) & column_mask
        packed = tl.load(packed_ptr + columns[None, :] * pairs_total + pairs[:, None], mask=mask, other=0)
        scales = tl.load(scales_ptr + columns[None, :] * groups + pairs[:, None] // pairs_per_group, mask=mask, other=0.0)
        low = ((packed & 15).to(tl.float16) - 8.0) * scales
        high = ((packed >> 4).to(tl.float16) - 8.0) * scales
        total = tl.dot(even, low.to(even.dtype), total)
        total = tl.dot(odd, high.to(odd.dtype), total)
    tl.store(y_ptr + rows[:, None] * N + columns[None, :], total.to(y_ptr.dtype.element_ty), mask=row_mask & column_mask)


def gemm_int4(x, packed, scales):
    M, K = x.shape
    N, groups = scales.shape
    y = torch.empty((M, N), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(M, CONFIG["BLOCK_M"]), triton.cdiv(N, CONFIG["BLOCK_N"]))
    gemm_int4_kernel[grid](
        x, packed, scales, y, M, N, K, groups, K // (2 * groups),
        BLOCK_M=CONFIG["BLOCK_M"], BLOCK_N=CONFIG["BLOCK_N"], BLOCK_P=CONFIG["BLOCK_P"],
        num_warps=CONFIG["num_warps"], num_stages=CONFIG["num_stages"],
    )  # fmt: skip
    return y
