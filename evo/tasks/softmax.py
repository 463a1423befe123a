"""Row-wise softmax of a matrix, in float32, float16 and bfloat16."""

from __future__ import annotations

import torch

from evo.tasks.base import DTYPE_BYTES, Case, Task, TensorSpec
from evo.tasks.draws import DEFAULT_VARIATIONS, Variation


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax over the last dimension; 16-bit inputs are computed in float32 and rounded once, as PyTorch does."""
    return torch.softmax(x, dim=-1)


def _case(rows: int, columns: int, dtype: str, scale: float = 1.0, offset: int = 0) -> Case:
    count = rows * columns
    # Per element: maximum, subtraction, exponential, sum, division.
    return Case(
        name=f"{rows}x{columns}_{dtype}",
        arguments=(TensorSpec((rows, columns), dtype, scale=scale, offset=offset),),
        bytes=2 * count * DTYPE_BYTES[dtype],
        flops=5 * count,
    )


TASK = Task(
    name="softmax",
    description=(
        "Softmax over the last dimension of a contiguous matrix x [rows, columns] in float32, float16 or bfloat16: "
        "y = exp(x - max(x)) / sum(exp(x - max(x))) per row. The result is a new contiguous matrix of the same shape and dtype. "
        "Accumulate in float32."
    ),
    entry="softmax",
    reference=softmax,
    training_cases=(
        _case(4096, 4096, "float32"),  # the classic square benchmark
        _case(16384, 1024, "float16", scale=3.0),  # attention rows of GPT-2: 16 heads of 1024 queries
        _case(2048, 16384, "bfloat16", scale=3.0),  # long-context attention rows
        _case(4096, 32000, "bfloat16", scale=2.0),  # logits of Llama-2 over its vocabulary
    ),
    held_out_cases=(
        _case(33, 513, "float32"),
        _case(4095, 2047, "float16", scale=3.0),
        _case(8192, 50257, "bfloat16", scale=2.0),  # logits of GPT-2
        _case(65536, 256, "float32"),
        _case(1, 30522, "float32"),  # one row of BERT's vocabulary
    ),
    small_cases=(
        _case(3, 7, "float32"),
        _case(5, 129, "float16", scale=3.0, offset=1),  # a start that no vector load is aligned to
        _case(2, 1000, "bfloat16", scale=2.0),
        _case(1, 1, "float32"),
        _case(0, 7, "float32"),
    ),
    starting_kernels=("starts/softmax.py",),
    # Differences from the maximum stay finite, whatever the range.
    variations=DEFAULT_VARIATIONS | {Variation.HUGE},
    kind="reduction",
)
