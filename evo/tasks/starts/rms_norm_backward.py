"""RMS normalisation backward: each program walks over some rows and keeps its part of dweight; a second kernel adds the parts."""

import torch
import triton
import triton.language as tl

CONFIG = {"PROGRAMS": 256, "num_warps": 8}
SPACE = {"PROGRAMS": [64, 128, 256, 512, 1024], "num_warps": [2, 4, 8, 16]}


@triton.jit
def rows_kernel(
    dy_ptr, x_ptr, weight_ptr, dx_ptr, parts_ptr, rows, hidden, eps, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    program = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < hidden
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    dweight = tl.zeros((BLOCK,), dtype=tl.float32)
    for row in range(program, rows, PROGRAMS):
        offsets = row * hidden + columns
        x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / hidden + eps)
        normal = x * scale
        inner = dy * weight
        dx = scale * (inner - normal * (tl.sum(inner * normal, axis=0) / hidden))
        tl.store(dx_ptr + offsets, dx.to(dx_ptr.dtype.element_ty), mask=mask)
        dweight += dy * normal
    tl.store(parts_ptr + program.to(tl.int64) * hidden + columns, dweight, mask=mask)


@triton.jit
def columns_kernel(parts_ptr, dweight_ptr, parts, hidden, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    columns = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32)
    for start in range(0, parts, BLOCK_P):
        part = start + tl.arange(0, BLOCK_P)
        mask = (part[:, None] < parts) & (columns[None, :] < hidden)
        total += tl.load(parts_ptr + part[:, None] * hidden + columns[None, :], mask=mask, other=0.0)
    tl.store(dweight_ptr + columns, tl.sum(total, axis=0).to(dweight_ptr.dtype.element_ty), mask=columns < hidden)


def rms_norm_backward(dy, x, weight, eps):
    rows, hidden = x.shape
    programs = min(CONFIG["PROGRAMS"], rows)
    dx = torch.empty((rows, hidden), dtype=x.dtype, device=x.device)
    dweight = torch.empty((hidden,), dtype=weight.dtype, device=x.device)
    parts = torch.empty((programs, hidden), dtype=torch.float32, device=x.device)
    rows_kernel[(programs,)](
        dy, x, weight, dx, parts, rows, hidden, eps,
        PROGRAMS=programs, BLOCK=triton.next_power_of_2(hidden), num_warps=CONFIG["num_warps"],
    )  # fmt: skip
    columns_kernel[(triton.cdiv(hidden, 64),)](parts, dweight, programs, hidden, BLOCK_P=32, BLOCK_C=64, num_warps=4)
    return dx, dweight
