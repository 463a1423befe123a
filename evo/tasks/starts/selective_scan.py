"""Selective scan: one program per batch and block of channels walks over the tokens with the state in registers."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK": 32, "num_warps": 2}
SPACE = {"BLOCK": [8, 16, 32, 64, 128], "num_warps": [1, 2, 4, 8]}


@triton.jit
def selective_scan_kernel(
    u_ptr, delta_ptr, a_ptr, b_ptr, c_ptr, d_ptr, y_ptr, length, channels, STATES: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    batch = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    states = tl.arange(0, STATES)
    mask = channel < channels
    a = tl.load(a_ptr + channel[:, None] * STATES + states[None, :], mask=mask[:, None], other=0.0)
    d = tl.load(d_ptr + channel, mask=mask, other=0.0)
    state = tl.zeros((BLOCK, STATES), dtype=tl.float32)
    for token in range(0, length):
        row = batch * length + token
        u = tl.load(u_ptr + row * channels + channel, mask=mask, other=0.0).to(tl.float32)
        delta = tl.load(delta_ptr + row * channels + channel, mask=mask, other=0.0)
        b = tl.load(b_ptr + row * STATES + states).to(tl.float32)
        c = tl.load(c_ptr + row * STATES + states).to(tl.float32)
        state = tl.exp(delta[:, None] * a) * state + (delta * u)[:, None] * b[None, :]
        y = tl.sum(state * c[None, :], axis=1) + d * u
        tl.store(y_ptr + row * channels + channel, y.to(y_ptr.dtype.element_ty), mask=mask)


def selective_scan(u, delta, a, b, c, d):
    batch, length, channels = u.shape
    y = torch.empty((batch, length, channels), dtype=u.dtype, device=u.device)
    grid = (triton.cdiv(channels, CONFIG["BLOCK"]), batch)
    selective_scan_kernel[grid](
        u, delta, a, b, c, d, y, length, channels, STATES=a.shape[1], BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"]
    )
    return y
