"""Histogram by one atomic addition per element."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK": 1024, "num_warps": 4}
SPACE = {"BLOCK": [256, 512, 1024, 2048, 4096], "num_warps": [1, 2, 4, 8]}


@triton.jit
def histogram_kernel(x_ptr, counts_ptr, count, bins, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < count, other=-1)
    tl.atomic_add(counts_ptr + x, 1, mask=(x >= 0) & (x < bins), sem="relaxed")


def histogram(x, bins):
    counts = torch.zeros((bins,), dtype=torch.int32, device=x.device)
    count = x.numel()
    histogram_kernel[(triton.cdiv(count, CONFIG["BLOCK"]),)](
        x, counts, count, bins, BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"]
    )
    return counts
