"""A task whose wrappers may look at values (sums of the first elements of each row), and modules that cannot be traced."""

from __future__ import annotations

from pathlib import Path

import torch

from evo.tasks.base import Case, Task, TensorSpec


def ragged_sums(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    return torch.where(inside, x, 0.0).sum(1) * 2


def _case(rows: int, columns: int) -> Case:
    x = TensorSpec((rows, columns), "float32")
    lengths = TensorSpec((rows,), "int32", "integers", low=1, high=columns + 1)
    return Case(f"{rows}x{columns}", (x, lengths), x.nbytes + 8 * rows, 2 * rows * columns)


GOOD = """
import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK": 64, "num_warps": 1}
SPACE = {"BLOCK": [32, 64], "num_warps": [1, 2]}

@triton.jit
def kernel(x_ptr, lengths_ptr, y_ptr, columns, longest, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    length = tl.load(lengths_ptr + row)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, longest, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * columns + at, mask=at < length, other=0.0)
    tl.store(y_ptr + row, tl.sum(total, axis=0) * 2)

def entry(x, lengths):
    rows, columns = x.shape
    y = torch.empty(rows, dtype=x.dtype, device=x.device)
    longest = max(lengths.tolist())
    kernel[(rows,)](x, lengths, y, columns, longest, BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"])
    return y
"""

TASK = Task(
    name="ragged_sums",
    description="twice the sum of the first elements of each row, as many as its length says",
    entry="entry",
    reference=ragged_sums,
    training_cases=(_case(6, 80),),
    held_out_cases=(_case(2, 130),),
    small_cases=(_case(3, 33),),
    starting_kernels=(GOOD,),
    path=Path(__file__),
)
ON_DEVICE = Task(
    name="ragged_sums",
    description=TASK.description,
    entry="entry",
    reference=ragged_sums,
    training_cases=(_case(4096, 2048), _case(512, 8192)),
    held_out_cases=(_case(1000, 777),),
    small_cases=(_case(5, 33), _case(3, 64)),
    starting_kernels=(GOOD,),
    path=Path(__file__),
)
"""The same in sizes for a GPU."""
