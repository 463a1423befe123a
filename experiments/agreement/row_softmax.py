"""Softmax of rows that fit one block: kernels of a few to some tens of microseconds, most of it memory traffic."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def row_softmax(x: torch.Tensor) -> torch.Tensor:
    """Over the last dimension."""
    return torch.softmax(x, dim=-1)


def _case(rows: int, columns: int) -> Case:
    spec = TensorSpec((rows, columns), "float32")
    return Case(f"{rows}x{columns}", (spec,), 2 * spec.nbytes, 5 * spec.numel)


KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def row_softmax_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row + at, mask=at < columns, other=float("-inf"))
    weights = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row + at, weights / tl.sum(weights, axis=0), mask=at < columns)


def row_softmax(x):
    y = torch.empty_like(x)
    rows, columns = x.shape
    row_softmax_kernel[(rows,)](x, y, columns, BLOCK=triton.next_power_of_2(columns), num_warps=4)
    return y
"""

TASK = Task(
    name="agreement_row_softmax",
    description="softmax of the rows of a float32 matrix",
    entry="row_softmax",
    reference=row_softmax,
    training_cases=(_case(512, 1024), _case(4096, 1024), _case(16384, 2048)),
    held_out_cases=(),
    small_cases=(_case(3, 7),),
    starting_kernels=(KERNEL,),
    kind="reduction",
)
