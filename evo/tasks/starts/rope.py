"""Rotary embedding: one program per token and head of q or k."""

import torch
import triton
import triton.language as tl

CONFIG = {"num_warps": 1}
SPACE = {"num_warps": [1, 2, 4]}


@triton.jit
def rope_kernel(x_ptr, cos_ptr, sin_ptr, y_ptr, heads, HALF: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    pairs = tl.arange(0, HALF)
    cos = tl.load(cos_ptr + token * HALF + pairs)
    sin = tl.load(sin_ptr + token * HALF + pairs)
    offsets = (token * heads + tl.program_id(1)) * (2 * HALF) + pairs
    first = tl.load(x_ptr + offsets).to(tl.float32)
    second = tl.load(x_ptr + offsets + HALF).to(tl.float32)
    tl.store(y_ptr + offsets, (first * cos - second * sin).to(y_ptr.dtype.element_ty))
    tl.store(y_ptr + offsets + HALF, (second * cos + first * sin).to(y_ptr.dtype.element_ty))


def rope(q, k, cos, sin):
    tokens, heads, dim = q.shape
    kv_heads = k.shape[1]
    rotated_q = torch.empty((tokens, heads, dim), dtype=q.dtype, device=q.device)
    rotated_k = torch.empty((tokens, kv_heads, dim), dtype=k.dtype, device=k.device)
    rope_kernel[(tokens, heads)](q, cos, sin, rotated_q, heads, HALF=dim // 2, num_warps=CONFIG["num_warps"])
    rope_kernel[(tokens, kv_heads)](k, cos, sin, rotated_k, kv_heads, HALF=dim // 2, num_warps=CONFIG["num_warps"])
    return rotated_q, rotated_k
