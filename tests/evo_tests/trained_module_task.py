"""A module with a weight that is trained and an offset that is not: gradients are of the weight, then of the argument."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from evo.tasks.base import Case, Task, TensorSpec

COLUMNS = 40


def weighted(parameters: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return x * parameters["weight"] + parameters["offset"]


def _case(rows: int) -> Case:
    spec = TensorSpec((rows, COLUMNS), "float32", requires_grad=True)
    return Case(f"{rows}", (spec,), 4 * spec.nbytes, 6 * spec.numel)


GOOD = """
import torch
import triton
import triton.language as tl

@triton.jit
def forward_kernel(x_ptr, w_ptr, b_ptr, y_ptr, count, columns, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, w = tl.load(x_ptr + at, mask=at < count), tl.load(w_ptr + at % columns, mask=at < count)
    tl.store(y_ptr + at, x * w + tl.load(b_ptr + at % columns, mask=at < count), mask=at < count)

@triton.jit
def backward_kernel(dy_ptr, x_ptr, w_ptr, dx_ptr, dw_ptr, rows, columns, BLOCK: tl.constexpr):
    column = tl.program_id(0)
    w = tl.load(w_ptr + column)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, rows, BLOCK):
        row = start + tl.arange(0, BLOCK)
        at = row * columns + column
        dy = tl.load(dy_ptr + at, mask=row < rows, other=0.0)
        total += dy * tl.load(x_ptr + at, mask=row < rows, other=0.0)
        tl.store(dx_ptr + at, dy * w, mask=row < rows)
    tl.store(dw_ptr + column, tl.sum(total, axis=0))

class Weighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, offset):
        ctx.save_for_backward(x, weight)
        y = torch.empty_like(x)
        forward_kernel[(triton.cdiv(x.numel(), 256),)](x, weight, offset, y, x.numel(), x.shape[1], BLOCK=256)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        dx, dw = torch.empty_like(x), torch.empty_like(weight)
        backward_kernel[(x.shape[1],)](dy, x, weight, dx, dw, x.shape[0], x.shape[1], BLOCK=64)
        return dx, dw, None

class Entry(torch.nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(columns))
        self.register_buffer("offset", torch.empty(columns))

    def forward(self, x):
        return Weighted.apply(x, self.weight, self.offset)
"""

WRONG_GRADIENT = GOOD.replace("tl.sum(total, axis=0)", "tl.sum(total, axis=0) * 2")

TASK = Task(
    name="weighted",
    description="x times a weight that is trained, plus an offset",
    entry="Entry",
    reference=weighted,
    training_cases=(_case(300),),
    held_out_cases=(),
    small_cases=(_case(3),),
    starting_kernels=(GOOD,),
    form="module",
    init_arguments=(COLUMNS,),
    parameters={"offset": TensorSpec((COLUMNS,), "float32"), "weight": TensorSpec((COLUMNS,), "float32", requires_grad=True)},
    backward=True,
    path=Path(__file__),
)
