"""Embedding lookup, in bfloat16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec
from evo.tasks.draws import DEFAULT_VARIATIONS, Variation


def embedding(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The row of each id."""
    return torch.nn.functional.embedding(ids, weight)


def _case(tokens: int, vocabulary: int, hidden: int) -> Case:
    ids = TensorSpec((tokens,), "int64", distribution="integers", high=vocabulary)
    weight = TensorSpec((vocabulary, hidden), "bfloat16")
    # Of the table, at most as many rows as there are tokens are read.
    read = min(tokens, vocabulary) * hidden * 2
    return Case(f"{tokens}x{hidden}_v{vocabulary}", (ids, weight), ids.nbytes + read + tokens * hidden * 2, 0)


TASK = Task(
    name="embedding",
    description=(
        "Embedding lookup: ids is an int64 vector [tokens] of rows of weight, a contiguous bfloat16 matrix [vocabulary, "
        "hidden]; y[t] = weight[ids[t]]. The result is a new contiguous bfloat16 matrix [tokens, hidden], bit for bit."
    ),
    entry="embedding",
    reference=embedding,
    training_cases=(
        _case(8192, 128256, 4096),  # Llama 3.1 8B
        _case(16384, 32000, 4096),  # Mistral 7B
        _case(16384, 50257, 768),  # GPT-2
    ),
    held_out_cases=(
        _case(1, 32000, 4096),  # Llama 2 7B, one token
        _case(4099, 5001, 1023),
        _case(32768, 152064, 5120),  # Qwen2.5 14B
    ),
    small_cases=(_case(5, 11, 7), _case(37, 6, 130), _case(3, 2, 300)),
    starting_kernels=("../starts/embedding.py",),
    variations=DEFAULT_VARIATIONS | {Variation.WIDE, Variation.HUGE},
    kind="elementwise",
)
