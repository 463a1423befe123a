"""Brings the results of experts back to their tokens and adds them up by weight, in bfloat16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def moe_combine(rows: torch.Tensor, places: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Σ_j weights[t, j] · rows[places[t, j]] per token, in at least float32."""
    wide = torch.promote_types(rows.dtype, torch.float32)
    total = torch.zeros((places.shape[0], rows.shape[1]), dtype=wide, device=rows.device)
    for choice in range(places.shape[1]):
        total += rows[places[:, choice]].to(wide) * weights[:, choice, None]
    return total.to(rows.dtype)


def _case(tokens: int, hidden: int, k: int) -> Case:
    rows = TensorSpec((tokens * k, hidden), "bfloat16")
    places = TensorSpec((tokens, k), "int32", distribution="permutation", high=tokens * k)
    weights = TensorSpec((tokens, k), "float32", distribution="uniform")
    return Case(
        f"{tokens}x{hidden}_k{k}",
        (rows, places, weights),
        rows.nbytes + places.nbytes + weights.nbytes + 2 * tokens * hidden,
        2 * rows.numel,
    )


TASK = Task(
    name="moe_combine",
    description=(
        "Combination of a mixture of experts: rows is a contiguous bfloat16 matrix [tokens * k, hidden], the experts' results; "
        "places is int32 [tokens, k], where each row stands once; weights is float32 [tokens, k]. y[t] = sum over j of "
        "weights[t, j] * rows[places[t, j]]. The result is a new contiguous bfloat16 matrix [tokens, hidden]. Accumulate in "
        "float32."
    ),
    entry="moe_combine",
    reference=moe_combine,
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
    starting_kernels=("../starts/moe_combine.py",),
    kind="reduction",
)
