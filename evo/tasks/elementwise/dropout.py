"""Dropout: random by intention, so that statistics judge it, in bfloat16."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from evo.tasks.base import Case, Task, TensorSpec
from evo.tasks.draws import DEFAULT_VARIATIONS, Variation
from evo.tasks.random_tests import Finding, always, kept_share

ROUNDING = 2.0**-6
"""Relative: two units in the last place of bfloat16, for scaling by a rounded factor and rounding again."""


def dropout(x: torch.Tensor, seed: torch.Tensor, p: float) -> torch.Tensor:
    """Drops each element with probability p and divides the others by 1 − p."""
    generator = torch.Generator(device=x.device).manual_seed(int(seed))
    kept = torch.rand(x.shape, generator=generator, device=x.device) >= p
    return torch.where(kept, x / (1 - p), 0.0)


def findings(arguments: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> Iterable[Finding]:
    """Every element is dropped or scaled; each is kept with probability 1 − p, independently of its neighbours."""
    x, _, p = arguments
    y = outputs[0].float()
    scaled = x.float() / (1 - p)
    yield always("an element is zero or x / (1 - p)", (y == 0) | ((y - scaled).abs() <= ROUNDING * scaled.abs()))
    yield from kept_share("elements kept", y != 0, 1 - p)


def _case(rows: int, columns: int, p: float) -> Case:
    x = TensorSpec((rows, columns), "bfloat16")
    seed = TensorSpec((1,), "int64", distribution="integers", high=float(1 << 31))
    # Random bits are counted as one operation: comparison, division, random number.
    return Case(f"{rows}x{columns}_p{p:g}", (x, seed, p), 2 * x.nbytes + 8, 3 * x.numel)


TASK = Task(
    name="dropout",
    description=(
        "Dropout: x is a contiguous bfloat16 matrix [rows, columns], seed an int64 tensor [1] on the device, p a Python float "
        "in (0, 1). Each element of y is 0 with probability p, independently of all others, and x / (1 - p) otherwise. Equal "
        "seeds give equal bits, other seeds independent ones. The result is a new contiguous bfloat16 matrix of the same shape."
    ),
    entry="dropout",
    reference=dropout,
    training_cases=(
        _case(8192, 4096, 0.1),  # hidden states of GPT-J 6B
        _case(16384, 1024, 0.1),  # BERT-large
        _case(4096, 16384, 0.5),  # an inner layer of GPT-J 6B, at the rate of the first paper on dropout
    ),
    held_out_cases=(_case(33, 768, 0.1), _case(1001, 1023, 0.3), _case(16384, 5120, 0.1)),
    # So many elements that a wrong share shows in each of them.
    small_cases=(_case(37, 67, 0.5), _case(5, 1030, 0.1), _case(90, 33, 0.9)),
    starting_kernels=("../starts/dropout.py",),
    oracle="stochastic",
    statistic=findings,
    # Not those with zeros, or values so small that they become zero: they cannot be told from dropped ones.
    variations=(DEFAULT_VARIATIONS | {Variation.WIDE})
    - {Variation.SPARSE, Variation.SIGNED_ZEROS, Variation.DENORMAL, Variation.SORTED},
    kind="elementwise",
)
