"""Rotary embedding of [rows, width]: halves are rotated against each other."""
# ruff: noqa: N803 - constexpr parameters are upper case

import torch
import triton
import triton.language as tl


@triton.jit
def rope(x_ptr, cos_ptr, sin_ptr, out_ptr, half, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    mask = lane < half
    cos = tl.load(cos_ptr + row * half + lane, mask=mask, other=0.0)
    sin = tl.load(sin_ptr + row * half + lane, mask=mask, other=0.0)
    first = tl.load(x_ptr + row * 2 * half + lane, mask=mask, other=0.0)
    second = tl.load(x_ptr + row * 2 * half + half + lane, mask=mask, other=0.0)
    tl.store(out_ptr + row * 2 * half + lane, first * cos - second * sin, mask=mask)
    tl.store(out_ptr + row * 2 * half + half + lane, second * cos + first * sin, mask=mask)


def entry(x, cos, sin):
    out = torch.empty_like(x)
    half = x.shape[1] // 2
    rope[(x.shape[0],)](x, cos, sin, out, half, BLOCK=triton.next_power_of_2(half), num_warps=2)
    return out
