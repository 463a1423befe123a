"""SwiGLU activation of a gated feed-forward layer, in bfloat16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec
from evo.tasks.draws import DEFAULT_VARIATIONS, Variation


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up, element by element."""
    return torch.nn.functional.silu(gate) * up


def _case(rows: int, columns: int, offset: int = 0) -> Case:
    count = rows * columns
    # Per element: exponential, addition, division, two multiplications.
    return Case(
        name=f"{rows}x{columns}",
        arguments=(
            TensorSpec((rows, columns), "bfloat16", scale=2.0, offset=offset),
            TensorSpec((rows, columns), "bfloat16"),
        ),
        bytes=2 * 3 * count,
        flops=5 * count,
    )


TASK = Task(
    name="swiglu",
    description=(
        "SwiGLU activation: y = gate * sigmoid(gate) * up for two contiguous bfloat16 matrices gate and up [rows, columns]. "
        "The result is a new contiguous bfloat16 matrix of the same shape. Compute in float32."
    ),
    entry="swiglu",
    reference=swiglu,
    training_cases=(
        _case(4096, 14336),  # Llama-3 8B and Mistral 7B
        _case(8192, 11008),  # Llama-2 7B
        _case(2048, 28672),  # Llama-3 70B
        _case(128, 14336),  # a decoding batch of Llama-3 8B
    ),
    held_out_cases=(
        _case(1, 11008),
        _case(17, 13824),  # Llama-2 13B
        _case(1000, 18944),  # Qwen2.5 7B
        _case(513, 4097),
        _case(16384, 14336),
    ),
    # A start that no vector load is aligned to, one element, none.
    small_cases=(_case(3, 37, offset=1), _case(2, 1000), _case(1, 1), _case(0, 37)),
    starting_kernels=("starts/swiglu.py",),
    # Saturates to 0 on one side and overflows to infinity on the other, as it should.
    variations=DEFAULT_VARIATIONS | {Variation.WIDE, Variation.HUGE},
    kind="elementwise",
)
