"""Dropout over the flattened matrix: one block of elements per program, random numbers from the seed and the position."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK": 1024, "num_warps": 4}
SPACE = {"BLOCK": [256, 512, 1024, 2048, 4096], "num_warps": [1, 2, 4, 8]}


@triton.jit
def dropout_kernel(x_ptr, seed_ptr, y_ptr, count, p, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    seed = tl.load(seed_ptr)
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    kept = tl.rand(seed, offsets) >= p
    y = tl.where(kept, x / (1.0 - p), 0.0)
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=mask)


def dropout(x, seed, p):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    count = x.numel()
    dropout_kernel[(triton.cdiv(count, CONFIG["BLOCK"]),)](
        x, seed, y, count, p, BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"]
    )
    return y
