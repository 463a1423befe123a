"""A task with a backward phase whose outputs are nested, with one of integers between the two that gradients flow back through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from evo.tasks.base import Case, Task, TensorSpec


def scaled(x: torch.Tensor) -> dict[str, Any]:
    return {"first": (x * 3, [(x > 0).to(torch.int64)]), "second": x * 5}


def _case(rows: int, columns: int) -> Case:
    spec = TensorSpec((rows, columns), "float32", requires_grad=True)
    return Case(f"{rows}x{columns}", (spec,), 5 * spec.nbytes, 4 * spec.numel)


GOOD = """
import torch
import triton
import triton.language as tl

@triton.jit
def forward_kernel(x_ptr, y_ptr, positive_ptr, z_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < count)
    tl.store(y_ptr + at, x * 3, mask=at < count)
    tl.store(positive_ptr + at, (x > 0).to(tl.int64), mask=at < count)
    tl.store(z_ptr + at, x * 5, mask=at < count)

@triton.jit
def backward_kernel(dy_ptr, dz_ptr, dx_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    dy = tl.load(dy_ptr + at, mask=at < count)
    dz = tl.load(dz_ptr + at, mask=at < count)
    tl.store(dx_ptr + at, dy * 3 + dz * 5, mask=at < count)

class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y, z = torch.empty_like(x), torch.empty_like(x)
        positive = torch.empty(x.shape, dtype=torch.int64, device=x.device)
        forward_kernel[(triton.cdiv(x.numel(), 256),)](x, y, positive, z, x.numel(), BLOCK=256)
        ctx.mark_non_differentiable(positive)
        return y, positive, z

    @staticmethod
    def backward(ctx, dy, _, dz):
        dx = torch.empty_like(dy)
        backward_kernel[(triton.cdiv(dy.numel(), 256),)](dy, dz, dx, dy.numel(), BLOCK=256)
        return dx

def entry(x):
    y, positive, z = Scaled.apply(x)
    return {"first": (y, [positive]), "second": z}
"""

WRONG_GRADIENT = GOOD.replace("dy * 3 + dz * 5", "dy * 5 + dz * 3")
LOSES_A_GRADIENT = GOOD.replace('"second": z', '"second": z.detach()')

TASK = Task(
    name="scaled",
    description="three and five times x, and where x is positive",
    entry="entry",
    reference=scaled,
    training_cases=(_case(300, 128),),
    held_out_cases=(),
    small_cases=(_case(3, 40),),
    starting_kernels=(GOOD,),
    backward=True,
    path=Path(__file__),
)
