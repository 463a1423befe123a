"""A task that updates its argument in place, which calls repeated on it would not repeat: x ← x / 2 + 1."""

from __future__ import annotations

from pathlib import Path

import torch

from evo.tasks.base import Case, Task, TensorSpec


def halve_and_add(x: torch.Tensor) -> None:
    x.mul_(0.5).add_(1.0)


def _case(rows: int, columns: int) -> Case:
    spec = TensorSpec((rows, columns), "float32")
    return Case(f"{rows}x{columns}", (spec,), 2 * spec.nbytes, 2 * spec.numel)


GOOD = """
import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < count)
    tl.store(x_ptr + at, x * 0.5 + 1.0, mask=at < count)

def entry(x):
    kernel[(triton.cdiv(x.numel(), 1024),)](x, x.numel(), BLOCK=1024)
"""

TASK = Task(
    name="halve_and_add",
    description="x is halved and incremented in place",
    entry="entry",
    reference=halve_and_add,
    training_cases=(_case(512, 1024),),
    held_out_cases=(_case(3, 777),),
    small_cases=(_case(5, 33),),
    starting_kernels=(GOOD,),
    mutates=(0,),
    path=Path(__file__),
)

TWICE = GOOD.replace("    kernel[", "    kernel[(0,)](x, 0, BLOCK=1024)\n    kernel[").replace("x * 0.5 + 1.0", "x / 2.0 + 1.0")
"""The same function, launched a little differently."""
