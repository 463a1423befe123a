"""Causal depthwise convolution: one program per batch and channel and block of tokens, which loads x once per tap."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK": 512, "num_warps": 4}
SPACE = {"BLOCK": [128, 256, 512, 1024, 2048], "num_warps": [1, 2, 4, 8]}


@triton.jit
def conv1d_causal_kernel(x_ptr, weight_ptr, bias_ptr, y_ptr, channels, length, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(1) % channels
    tokens = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32) + tl.load(bias_ptr + channel).to(tl.float32)
    for tap in tl.static_range(WIDTH):
        source = tokens - (WIDTH - 1) + tap
        x = tl.load(x_ptr + row * length + source, mask=(source >= 0) & (source < length), other=0.0).to(tl.float32)
        total += tl.load(weight_ptr + channel * WIDTH + tap).to(tl.float32) * x
    y = total * tl.sigmoid(total)
    tl.store(y_ptr + row * length + tokens, y.to(y_ptr.dtype.element_ty), mask=tokens < length)


def conv1d_causal(x, weight, bias):
    batch, channels, length = x.shape
    y = torch.empty((batch, channels, length), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(length, CONFIG["BLOCK"]), batch * channels)
    conv1d_causal_kernel[grid](
        x, weight, bias, y, channels, length, WIDTH=weight.shape[1], BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"]
    )
    return y
