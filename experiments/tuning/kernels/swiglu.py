# ruff: noqa: N803, D103
"""SwiGLU over the flattened matrices: some blocks of elements per program, one after the other."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK": 1024, "BLOCKS": 1, "STREAM_IN": 0, "STREAM_OUT": 0, "num_warps": 4}
SPACE = {
    "BLOCK": [256, 512, 1024, 2048, 4096],
    "BLOCKS": [1, 2, 4, 8],
    "STREAM_IN": [0, 1],
    "STREAM_OUT": [0, 1],
    "num_warps": [1, 2, 4, 8],
}


@triton.jit
def swiglu_kernel(
    gate_ptr, up_ptr, y_ptr, count,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, STREAM_IN: tl.constexpr, STREAM_OUT: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) * BLOCK * BLOCKS
    policy: tl.constexpr = "evict_first" if STREAM_IN else ""
    for block in tl.range(0, BLOCKS):
        offsets = first + block * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < count
        gate = tl.load(gate_ptr + offsets, mask=mask, other=0.0, eviction_policy=policy).to(tl.float32)
        up = tl.load(up_ptr + offsets, mask=mask, other=0.0, eviction_policy=policy).to(tl.float32)
        y = (gate * tl.sigmoid(gate) * up).to(y_ptr.dtype.element_ty)
        tl.store(y_ptr + offsets, y, mask=mask, cache_modifier=".cs" if STREAM_OUT else "")


def swiglu(gate, up):
    y = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    count = gate.numel()
    swiglu_kernel[lambda meta: (triton.cdiv(count, meta["BLOCK"] * meta["BLOCKS"]),)](gate, up, y, count, **CONFIG)
    return y
