"""Gathers tokens in the order of the experts they were routed to, in bfloat16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec
from evo.tasks.draws import DEFAULT_VARIATIONS, Variation


def moe_permute(x: torch.Tensor, order: torch.Tensor, k: int) -> torch.Tensor:
    """Row i of the result is the token of the pair order[i], where pair t · k + j is the j-th expert of token t."""
    return x[torch.div(order, k, rounding_mode="floor")]


def _case(tokens: int, hidden: int, k: int) -> Case:
    x = TensorSpec((tokens, hidden), "bfloat16")
    order = TensorSpec((tokens * k,), "int32", distribution="permutation", high=tokens * k)
    return Case(f"{tokens}x{hidden}_k{k}", (x, order, k), x.nbytes * (1 + k) + order.nbytes, 0)


TASK = Task(
    name="moe_permute",
    description=(
        "Permutation of a mixture of experts: x is a contiguous bfloat16 matrix [tokens, hidden]; order is an int32 vector "
        "[tokens * k], a permutation of 0..tokens*k-1 that sorts the pairs of token and expert by expert, where pair p belongs "
        "to token p // k; k is a positive int. y[i] = x[order[i] // k]. The result is a new contiguous bfloat16 matrix [tokens "
        "* k, hidden], bit for bit."
    ),
    entry="moe_permute",
    reference=moe_permute,
    training_cases=(
        _case(4096, 4096, 2),  # Mixtral 8x7B
        _case(4096, 7168, 8),  # DeepSeek-V3
        _case(8192, 2048, 8),  # Qwen3 30B-A3B
    ),
    held_out_cases=(
        _case(1, 2880, 4),  # gpt-oss, one token
        _case(1001, 1023, 3),
        _case(16384, 4096, 8),  # Qwen3 235B-A22B
    ),
    small_cases=(_case(5, 7, 2), _case(13, 130, 3), _case(1, 300, 1)),
    starting_kernels=("../starts/moe_permute.py",),
    variations=DEFAULT_VARIATIONS | {Variation.WIDE, Variation.HUGE},
    kind="elementwise",
)
