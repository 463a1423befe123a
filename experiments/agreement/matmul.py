"""Products of square matrices, of float16 on tensor cores and of float32 without: kernels of ten microseconds to ten milliseconds."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a b."""
    return a @ b


def _case(size: int, dtype: str) -> Case:
    spec = TensorSpec((size, size), dtype)
    return Case(f"{size}³_{dtype}", (spec, spec), 3 * spec.nbytes, 2 * size**3)


KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        a = tl.load(a_ptr + rows[:, None] * K + inner[None, :], mask=(rows[:, None] < M) & (inner[None, :] < K), other=0.0)
        b = tl.load(b_ptr + inner[:, None] * N + columns[None, :], mask=(inner[:, None] < K) & (columns[None, :] < N), other=0.0)
        accumulator = tl.dot(a, b, accumulator, input_precision="ieee")
    at = rows[:, None] * N + columns[None, :]
    tl.store(c_ptr + at, accumulator.to(c_ptr.dtype.element_ty), mask=(rows[:, None] < M) & (columns[None, :] < N))


def matmul(a, b):
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    tile, depth, warps = (128, 64, 8) if a.dtype == torch.float16 else (64, 16, 4)
    grid = (triton.cdiv(m, tile), triton.cdiv(n, tile))
    matmul_kernel[grid](
        a, b, c, m, n, k, BLOCK_M=tile, BLOCK_N=tile, BLOCK_K=depth, num_warps=warps, num_stages=3
    )
    return c
"""

TASK = Task(
    name="agreement_matmul",
    description="the product of two square matrices of one dtype, accumulated in float32",
    entry="matmul",
    reference=matmul,
    training_cases=(_case(1024, "float16"), _case(4096, "float16"), _case(4608, "float32")),
    held_out_cases=(),
    small_cases=(_case(33, "float16"), _case(17, "float32")),
    starting_kernels=(KERNEL,),
    kind="gemm",
)
