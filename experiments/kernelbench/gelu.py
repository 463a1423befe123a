"""The tanh form of GELU, element by element: 0.5 x (1 + tanh z) = x sigmoid(2 z)."""

import torch
import triton
import triton.language as tl


@triton.jit
def gelu_kernel(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < count)
    z = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    tl.store(y_ptr + at, x / (1.0 + tl.exp(-2.0 * z)), mask=at < count)


def forward(x):
    y = torch.empty_like(x)
    count = x.numel()
    gelu_kernel[(triton.cdiv(count, 2048),)](x, y, count, BLOCK=2048, num_warps=4)
    return y
