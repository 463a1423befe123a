"""A copy by an autotuned kernel whose indices go around the end."""
# ruff: noqa: N803 - constexpr parameters are upper case

import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[triton.Config({"BLOCK": 64}, num_warps=4), triton.Config({"BLOCK": 32}, num_warps=2)],
    key=["n"],
)
@triton.jit
def wrapped_copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


@triton.jit
def shifted_kernel(x_ptr, y_ptr, n, TILE: tl.constexpr):
    at = (tl.program_id(0) * TILE + tl.arange(0, TILE)) % n  # around the end
    tl.store(y_ptr + at, tl.load(x_ptr + at) + 1.0)


def entry(x):
    y, z, n = torch.empty_like(x), torch.empty_like(x), x.numel()
    wrapped_copy_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)
    shifted_kernel[(triton.cdiv(n, 64),)](x, z, n, TILE=64)
    return y, z
