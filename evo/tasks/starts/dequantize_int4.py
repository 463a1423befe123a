"""Unpacking of 4-bit weights: one block of packed bytes per program, which writes low and high levels apart."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK": 1024, "num_warps": 4}
SPACE = {"BLOCK": [256, 512, 1024, 2048, 4096], "num_warps": [1, 2, 4, 8]}


@triton.jit
def dequantize_int4_kernel(packed_ptr, scales_ptr, zeros_ptr, y_ptr, count, pairs_per_group, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    packed = tl.load(packed_ptr + at, mask=mask, other=0)
    # Rows are whole numbers of groups, so that groups of the flattened matrix are those of its rows.
    group = at // pairs_per_group
    scale = tl.load(scales_ptr + group, mask=mask, other=0.0).to(tl.float32)
    zero = tl.load(zeros_ptr + group, mask=mask, other=0).to(tl.float32)
    low = ((packed & 15).to(tl.float32) - zero) * scale
    high = ((packed >> 4).to(tl.float32) - zero) * scale
    tl.store(y_ptr + 2 * at, low.to(y_ptr.dtype.element_ty), mask=mask)
    tl.store(y_ptr + 2 * at + 1, high.to(y_ptr.dtype.element_ty), mask=mask)


def dequantize_int4(packed, scales, zeros):
    rows, pairs = packed.shape
    y = torch.empty((rows, 2 * pairs), dtype=scales.dtype, device=packed.device)
    count = rows * pairs
    dequantize_int4_kernel[(triton.cdiv(count, CONFIG["BLOCK"]),)](
        packed, scales, zeros, y, count, pairs // scales.shape[1], BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"]
    )
    return y
