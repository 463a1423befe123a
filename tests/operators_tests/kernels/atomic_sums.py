"""Sums of a matrix over all elements and by column, added atomically by all programs."""
# ruff: noqa: N803 - constexpr parameters are upper case

import torch
import triton
import triton.language as tl


@triton.jit
def total_kernel(x_ptr, total_ptr, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < count, other=0.0).to(tl.float32)
    tl.atomic_add(total_ptr, tl.sum(x, axis=0))  # one element for all


@triton.jit
def columns_kernel(x_ptr, sums_ptr, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    down = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    across = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = (down[:, None] < rows) & (across[None, :] < columns)
    x = tl.load(x_ptr + down[:, None] * columns + across[None, :], mask=mask, other=0.0)
    # Programs of one column of tiles meet here.
    tl.atomic_add(sums_ptr + across, tl.sum(x.to(tl.float32), axis=0), mask=across < columns)


def entry(x):
    rows, columns = x.shape
    total = torch.zeros(1, dtype=torch.float32, device=x.device)
    sums = torch.zeros(columns, dtype=torch.float32, device=x.device)
    total_kernel[(triton.cdiv(x.numel(), 32),)](x, total, x.numel(), BLOCK=32)
    columns_kernel[(triton.cdiv(rows, 2), triton.cdiv(columns, 16))](x, sums, rows, columns, ROWS=2, BLOCK=16)
    return total, sums
