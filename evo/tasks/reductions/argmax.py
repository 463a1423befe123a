"""Position of the largest element of each row, in bfloat16: greedy decoding."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec
from evo.tasks.draws import DEFAULT_VARIATIONS, Variation


def argmax(x: torch.Tensor) -> torch.Tensor:
    """Of equal elements the first one."""
    highest = x.amax(dim=-1, keepdim=True)
    columns = torch.arange(x.shape[-1], device=x.device)
    return torch.where(x == highest, columns, x.shape[-1]).amin(dim=-1)


def _case(rows: int, columns: int, offset: int = 0) -> Case:
    x = TensorSpec((rows, columns), "bfloat16", offset=offset)
    return Case(f"{rows}x{columns}", (x,), x.nbytes + 8 * rows, x.numel)


TASK = Task(
    name="argmax",
    description=(
        "Position of the largest element of each row of a contiguous bfloat16 matrix x [rows, columns]; of equal elements, that"
        " of the first one. The result is a new int64 vector [rows]. Zeros of either sign are equal."
    ),
    entry="argmax",
    reference=argmax,
    training_cases=(
        _case(64, 128256),  # Llama 3.1 decodes 64 sequences
        _case(512, 151936),  # Qwen2.5, a large batch
        _case(4096, 32000),  # Mistral 7B, speculative tokens of a long prompt
    ),
    held_out_cases=(_case(1, 50257), _case(1000, 1023), _case(4096, 128256)),
    # Many rows: a constant would be right too often where there are few.
    small_cases=(_case(37, 13, offset=1), _case(9, 2050), _case(3, 1)),
    starting_kernels=("../starts/argmax.py",),
    variations=DEFAULT_VARIATIONS | {Variation.WIDE, Variation.HUGE},
    kind="reduction",
)
