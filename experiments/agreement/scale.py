"""Three times a vector of half a MiB to two GiB: kernels of a few microseconds to a millisecond."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def scale(x: torch.Tensor) -> torch.Tensor:
    """3 x."""
    return 3 * x


def _case(log2: int) -> Case:
    spec = TensorSpec((1 << log2,), "float32")
    return Case(f"2^{log2}", (spec,), 2 * spec.nbytes, spec.numel)


KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def scale_kernel(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, 3 * tl.load(x_ptr + at, mask=at < count), mask=at < count)


def scale(x):
    y = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), 2048),)](x, y, x.numel(), BLOCK=2048, num_warps=4)
    return y
"""

TASK = Task(
    name="agreement_scale",
    description="three times a float32 vector",
    entry="scale",
    reference=scale,
    training_cases=tuple(_case(log2) for log2 in (17, 20, 24, 27, 29)),
    held_out_cases=(),
    small_cases=(_case(7),),
    starting_kernels=(KERNEL,),
    kind="pointwise",
)
