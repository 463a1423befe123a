"""Learns which operators raise fitness on a kind of kernel, and chooses between them (Thompson sampling).

Each operator has a Beta distribution over its reward in [0, 1] (Thompson 1933; for rewards that are no coin flips, Agrawal and
Goyal 2012). What was learned fades, because an operator that helped a plain kernel seldom helps a tuned one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

GAIN_SCALE = 0.05
"""A rise of fitness by this share gives a reward of 1 − 1/e."""


@dataclass
class Arm:
    """What is known of one operator: faded sums, and whole counts for people."""

    won: float = 0.0
    lost: float = 0.0
    uses: int = 0
    gains: int = 0


def reward(parent_fitness: float, child_fitness: float) -> float:
    """0 for a failure or no gain; near 1 for a rise of fitness by several times `GAIN_SCALE`."""
    if child_fitness <= parent_fitness or parent_fitness <= 0:
        return 1.0 if child_fitness > 0 >= parent_fitness else 0.0
    return 1.0 - math.exp(-math.log(child_fitness / parent_fitness) / GAIN_SCALE)


class Bandit:
    """Operator statistics for one kind of kernel.

    Args:
        floor: Share of choices made evenly.
        memory: Uses of an operator after which an old reward counts 1/e.
    """

    KEPT: ClassVar = ("arms",)

    def __init__(self, floor: float, memory: int) -> None:
        self.arms: dict[str, Arm] = {}
        self._floor = floor
        self._fade = math.exp(-1.0 / memory)

    def choose(self, operators: Sequence[str], rng: np.random.Generator) -> str:
        """One of `operators` (not empty). Draws the same count of numbers whatever was learned of them."""
        evenly = rng.random() < self._floor
        any_one = int(rng.integers(len(operators)))
        arms = [self.arms.get(name, Arm()) for name in operators]
        draws = rng.beta([1.0 + arm.won for arm in arms], [1.0 + arm.lost for arm in arms])
        return operators[any_one if evenly else int(np.argmax(draws))]

    def learn(self, operator: str, gained: float) -> None:
        """Adds one use with its reward in [0, 1]."""
        arm = self.arms.setdefault(operator, Arm())
        arm.won = arm.won * self._fade + gained
        arm.lost = arm.lost * self._fade + 1.0 - gained
        arm.uses += 1
        arm.gains += gained > 0
