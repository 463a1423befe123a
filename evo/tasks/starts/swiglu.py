"""SwiGLU over the flattened matrices: one block of elements per program."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK": 1024, "num_warps": 4}
SPACE = {"BLOCK": [256, 512, 1024, 2048, 4096, 8192], "num_warps": [1, 2, 4, 8]}


@triton.jit
def swiglu_kernel(gate_ptr, up_ptr, y_ptr, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    gate = tl.load(gate_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    y = gate * tl.sigmoid(gate) * up
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=mask)


def swiglu(gate, up):
    y = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    count = gate.numel()
    swiglu_kernel[(triton.cdiv(count, CONFIG["BLOCK"]),)](
        gate, up, y, count, BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"]
    )
    return y
