"""Transposition of a matrix in float16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec
from evo.tasks.draws import DEFAULT_VARIATIONS, Variation


def transpose(x: torch.Tensor) -> torch.Tensor:
    """A contiguous copy with rows and columns exchanged, per matrix of the batch."""
    return x.transpose(1, 2).contiguous()


def _case(batch: int, rows: int, columns: int, offset: int = 0) -> Case:
    x = TensorSpec((batch, rows, columns), "float16", offset=offset)
    return Case(f"{batch}x{rows}x{columns}", (x,), 2 * x.nbytes, 0)


TASK = Task(
    name="transpose",
    description=(
        "Transposition: x is a contiguous float16 tensor [batch, rows, columns]; y[b, j, i] = x[b, i, j]. The result is a new "
        "contiguous float16 tensor [batch, columns, rows], bit for bit."
    ),
    entry="transpose",
    reference=transpose,
    training_cases=(
        _case(1, 8192, 8192),  # a weight of Llama 3.1 70B
        _case(32, 2048, 128),  # heads of Llama 3.1 8B, keys of 2048 tokens
        _case(64, 3136, 256),  # ResNet-50's first stage, pixels and channels exchanged
    ),
    held_out_cases=(
        _case(1, 32, 4096),
        _case(3, 1023, 517),
        _case(1, 14336, 8192),
    ),
    small_cases=(_case(2, 5, 7, offset=1), _case(1, 33, 70), _case(3, 1, 130)),
    starting_kernels=("../starts/transpose.py",),
    variations=DEFAULT_VARIATIONS | {Variation.HUGE},
    kind="elementwise",
)
