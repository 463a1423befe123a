"""The largest elements of each row with their positions, as routers of mixtures of experts choose, in float32."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec
from evo.tasks.draws import DEFAULT_VARIATIONS, Variation


def top_k(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest in descending order and their columns; of equal elements the first one comes first."""
    values, columns = torch.sort(x, dim=-1, descending=True, stable=True)
    return values[:, :k].contiguous(), columns[:, :k].to(torch.int32)


def _case(rows: int, columns: int, k: int, offset: int = 0) -> Case:
    x = TensorSpec((rows, columns), "float32", offset=offset)
    # k comparisons per element.
    return Case(f"{rows}x{columns}_k{k}", (x, k), x.nbytes + 8 * rows * k, k * x.numel)


TASK = Task(
    name="top_k",
    description=(
        "The k largest elements of each row of a contiguous float32 matrix x [rows, columns], in descending order. Returns the "
        "tuple (values, columns): a new contiguous float32 matrix [rows, k] and a new contiguous int32 matrix [rows, k] of "
        "their positions. Of equal elements the one with the smaller position comes first; zeros of either sign are equal. k is"
        " from 1 to 16, columns at least k."
    ),
    entry="top_k",
    reference=top_k,
    training_cases=(
        _case(16384, 128, 8),  # Qwen3 30B-A3B: 8 of 128 experts, 16384 tokens
        _case(16384, 256, 8),  # DeepSeek-V3: 8 of 256
        _case(65536, 8, 2),  # Mixtral 8x7B: 2 of 8
        _case(16384, 64, 6),  # DeepSeek-V2-Lite: 6 of 64
    ),
    held_out_cases=(
        _case(1, 128, 4),  # gpt-oss 120B, one token
        _case(4097, 60, 4),  # Qwen1.5-MoE
        _case(131072, 128, 8),
    ),
    small_cases=(_case(5, 13, 3, offset=1), _case(9, 130, 8), _case(3, 2, 2), _case(2, 1, 1)),
    starting_kernels=("../starts/top_k.py",),
    variations=DEFAULT_VARIATIONS | {Variation.WIDE, Variation.HUGE},
    kind="reduction",
)
