"""A small task (scaled row sums) and modules for it: a good one, and ones that fail on a rung each."""

from __future__ import annotations

from pathlib import Path

import torch

from evo.tasks.base import Case, Task, TensorSpec


def row_sums(x: torch.Tensor) -> torch.Tensor:
    return x.sum(1) * 2


def _case(rows: int, columns: int) -> Case:
    spec = TensorSpec((rows, columns), "float32")
    return Case(f"{rows}x{columns}", (spec,), spec.nbytes + 4 * rows, 2 * rows * columns)


GOOD = """
import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK": 256, "num_warps": 4}
SPACE = {"BLOCK": [64, 256], "num_warps": [1, 4]}

@triton.jit
def kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * columns + at, mask=at < columns, other=0.0)
    tl.store(y_ptr + row, tl.sum(total, axis=0) * 2)

def entry(x):
    rows, columns = x.shape
    y = torch.empty(rows, dtype=x.dtype, device=x.device)
    kernel[(rows,)](x, y, columns, BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"])
    return y
"""

TASK = Task(
    name="row_sums",
    description="twice the sum of each row",
    entry="entry",
    reference=row_sums,
    training_cases=(_case(4096, 1000), _case(512, 4096)),
    held_out_cases=(_case(1, 1), _case(3000, 777)),
    small_cases=(_case(5, 33), _case(3, 64)),
    starting_kernels=(GOOD,),
    path=Path(__file__),
)

WRONG = GOOD.replace("at < columns", "at < columns - 1")
UNWRITTEN = GOOD.replace("kernel[(rows,)]", "kernel[(rows - 1,)]")
WRITES_PAST_ITS_BUFFER = GOOD.replace(
    "tl.store(y_ptr + row,", "tl.store(y_ptr + row + tl.num_programs(0), 0.0)\n    tl.store(y_ptr + row,"
)
CHANGES_ITS_INPUT = GOOD.replace(
    "    tl.store(y_ptr + row,", "    tl.store(x_ptr + row * columns, 0.0)\n    tl.store(y_ptr + row,"
)
ILLEGAL = GOOD.replace("tl.load(x_ptr + row * columns + at,", "tl.load(x_ptr + (row.to(tl.int64) + 1) * 100000000000 + at,")
READS_PAST_ITS_BUFFER = GOOD.replace(
    "tl.sum(total, axis=0) * 2)",
    "tl.sum(total, axis=0) * 2 + tl.where(tl.load(x_ptr + tl.num_programs(0) * columns) > 1e30, 1.0, 0.0))",
)
USES_STALE_SCRATCH = (
    GOOD.replace("kernel(x_ptr, y_ptr,", "kernel(x_ptr, s_ptr, y_ptr,")
    .replace("tl.sum(total, axis=0) * 2)", "tl.sum(total, axis=0) * 2 + tl.where(tl.load(s_ptr + row) > 1e30, 1.0, 0.0))")
    .replace("kernel[(rows,)](x,", "kernel[(rows,)](x, torch.empty_like(y),")
)
ENDLESS = GOOD.replace(
    "    tl.store(y_ptr + row,", "    while tl.load(x_ptr) < 1e30:\n        total += 1\n    tl.store(y_ptr + row,"
)
NEEDS_TUNING = GOOD.replace('CONFIG = {"BLOCK": 256, "num_warps": 4}', 'CONFIG = {"BLOCK": 65536, "num_warps": 1}').replace(
    '"BLOCK": [64, 256]', '"BLOCK": [64, 256, 65536]'
)
