"""Names what a case's inputs are drawn as: a seed, and how the declared distribution is varied."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Variation(StrEnum):
    """How floating-point inputs differ from the task's declared distribution; PLAIN is that distribution itself."""

    PLAIN = "plain"


@dataclass(frozen=True)
class Draw:
    """Which inputs of a case: equal draws give equal bits on one kind of device."""

    seed: int
    variation: Variation = Variation.PLAIN
