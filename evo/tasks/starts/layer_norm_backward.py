"""Layer normalisation backward: each program sums dweight and dbias over some rows, and a second kernel over the programs."""

import torch
import triton
import triton.language as tl

CONFIG = {"PROGRAMS": 256, "num_warps": 8}
SPACE = {"PROGRAMS": [64, 128, 256, 512, 1024], "num_warps": [2, 4, 8, 16]}


@triton.jit
def rows_kernel(
    dy_ptr, x_ptr, weight_ptr, dx_ptr, dweight_parts_ptr, dbias_parts_ptr, rows, hidden, eps, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    program = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < hidden
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    dweight = tl.zeros((BLOCK,), dtype=tl.float32)
    dbias = tl.zeros((BLOCK,), dtype=tl.float32)
    for row in range(program, rows, PROGRAMS):
        offsets = row * hidden + columns
        x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        centred = tl.where(mask, x - tl.sum(x, axis=0) / hidden, 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / hidden + eps)
        normal = centred * scale
        inner = dy * weight
        mean_inner = tl.sum(inner, axis=0) / hidden
        mean_product = tl.sum(inner * normal, axis=0) / hidden
        dx = scale * (inner - mean_inner - normal * mean_product)
        tl.store(dx_ptr + offsets, dx.to(dx_ptr.dtype.element_ty), mask=mask)
        dweight += dy * normal
        dbias += dy
    parts = program.to(tl.int64) * hidden + columns
    tl.store(dweight_parts_ptr + parts, dweight, mask=mask)
    tl.store(dbias_parts_ptr + parts, dbias, mask=mask)


@triton.jit
def columns_kernel(
    dweight_parts_ptr, dbias_parts_ptr, dweight_ptr, dbias_ptr, parts, hidden, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr
):  # fmt: skip
    columns = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    dweight = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32)
    dbias = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32)
    for start in range(0, parts, BLOCK_P):
        part = start + tl.arange(0, BLOCK_P)
        offsets = part[:, None] * hidden + columns[None, :]
        mask = (part[:, None] < parts) & (columns[None, :] < hidden)
        dweight += tl.load(dweight_parts_ptr + offsets, mask=mask, other=0.0)
        dbias += tl.load(dbias_parts_ptr + offsets, mask=mask, other=0.0)
    mask = columns < hidden
    tl.store(dweight_ptr + columns, tl.sum(dweight, axis=0).to(dweight_ptr.dtype.element_ty), mask=mask)
    tl.store(dbias_ptr + columns, tl.sum(dbias, axis=0).to(dbias_ptr.dtype.element_ty), mask=mask)


def layer_norm_backward(dy, x, weight, eps):
    rows, hidden = x.shape
    programs = min(CONFIG["PROGRAMS"], rows)
    dx = torch.empty((rows, hidden), dtype=x.dtype, device=x.device)
    dweight = torch.empty((hidden,), dtype=weight.dtype, device=x.device)
    dbias = torch.empty((hidden,), dtype=weight.dtype, device=x.device)
    dweight_parts = torch.empty((programs, hidden), dtype=torch.float32, device=x.device)
    dbias_parts = torch.empty((programs, hidden), dtype=torch.float32, device=x.device)
    rows_kernel[(programs,)](
        dy, x, weight, dx, dweight_parts, dbias_parts, rows, hidden, eps,
        PROGRAMS=programs, BLOCK=triton.next_power_of_2(hidden), num_warps=CONFIG["num_warps"],
    )  # fmt: skip
    columns_kernel[(triton.cdiv(hidden, 64),)](
        dweight_parts, dbias_parts, dweight, dbias, programs, hidden, BLOCK_P=32, BLOCK_C=64, num_warps=4
    )
    return dx, dweight, dbias
