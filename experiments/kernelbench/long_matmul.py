"""A product with a very long inner dimension: parts of it side by side, their sums added in a fixed order."""

import torch
import triton
import triton.language as tl

PARTS = 64


@triton.jit
def parts_kernel(a_ptr, b_ptr, parts_ptr, M, N, K, LENGTH, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    part = tl.program_id(2)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(part * LENGTH, tl.minimum((part + 1) * LENGTH, K), BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        a = tl.load(a_ptr + rows[:, None] * K + inner[None, :], mask=(rows[:, None] < M) & (inner[None, :] < K), other=0.0)
        b = tl.load(b_ptr + inner[:, None] * N + columns[None, :], mask=(inner[:, None] < K) & (columns[None, :] < N), other=0.0)
        accumulator = tl.dot(a, b, accumulator, input_precision="ieee")
    at = part * M * N + rows[:, None] * N + columns[None, :]
    tl.store(parts_ptr + at, accumulator, mask=(rows[:, None] < M) & (columns[None, :] < N))


@triton.jit
def sum_kernel(parts_ptr, c_ptr, count, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for part in range(0, PARTS):
        total += tl.load(parts_ptr + part * count + at, mask=at < count, other=0.0)
    tl.store(c_ptr + at, total, mask=at < count)


def forward(a, b):
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    parts = torch.empty((PARTS, m, n), dtype=a.dtype, device=a.device)
    length = triton.cdiv(triton.cdiv(k, PARTS), 32) * 32
    grid = (triton.cdiv(m, 64), triton.cdiv(n, 64), PARTS)
    parts_kernel[grid](a, b, parts, m, n, k, length, BLOCK_M=64, BLOCK_N=64, BLOCK_K=16, num_warps=4, num_stages=3)
    sum_kernel[(triton.cdiv(m * n, 256),)](parts, c, m * n, PARTS=PARTS, BLOCK=256, num_warps=4)
    return c
