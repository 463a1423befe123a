"""Learns which operators raise fitness on a kind of kernel, and chooses between them (Thompson sampling).

Each operator has a Beta distribution over its reward in [0, 1] (Thompson 1933; for rewards that are no coin flips, Agrawal and
Goyal 2012). What was learned fades, because an operator that helped a plain kernel seldom helps a tuned one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from evo.search.chains import offered

GAIN_SCALE = 0.05
"""A rise of fitness by this share gives a reward of 1 − 1/e."""

EARLIER_USES = 10.0
"""As how many uses what earlier runs tell of an operator counts at most: other tasks, perhaps another device."""


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

    Chains (see `evo.search.chains`) are arms like operators: one learns from each such sequence that the search makes, step by step or
    at once.

    Args:
        floor: Share of choices made evenly.
        memory: Uses of an operator after which an old reward counts 1/e.
        earlier: What earlier runs tell of operators on this kind of kernel.
    """

    KEPT: ClassVar = ("arms",)

    def __init__(self, floor: float, memory: int, earlier: Mapping[str, Arm] | None = None) -> None:
        self.arms: dict[str, Arm] = {}
        self._earlier = {name: _lightened(arm) for name, arm in (earlier or {}).items()}
        self._floor = floor
        self._fade = math.exp(-1.0 / memory)

    def choose(self, operators: Sequence[str], rng: np.random.Generator) -> str:
        """One of `operators` (not empty). Draws the same count of numbers whatever was learned of them."""
        evenly = rng.random() < self._floor
        any_one = int(rng.integers(len(operators)))
        arms = [self._known(name) for name in operators]
        draws = rng.beta([1.0 + arm.won for arm in arms], [1.0 + arm.lost for arm in arms])
        return operators[any_one if evenly else int(np.argmax(draws))]

    def chains(self, operators: Iterable[str]) -> list[str]:
        """Chains of these operators that are worth being offered as one move."""
        return offered({name: self._known(name) for name in {**self._earlier, **self.arms}}, operators)

    def learn(self, operator: str, gained: float) -> None:
        """Adds one use with its reward in [0, 1]."""
        arm = self.arms.setdefault(operator, Arm())
        arm.won = arm.won * self._fade + gained
        arm.lost = arm.lost * self._fade + 1.0 - gained
        arm.uses += 1
        arm.gains += gained > 0

    def _known(self, operator: str) -> Arm:
        """What this run and earlier ones know."""
        arm, earlier = self.arms.get(operator, Arm()), self._earlier.get(operator)
        if earlier is None:
            return arm
        return Arm(arm.won + earlier.won, arm.lost + earlier.lost, arm.uses + earlier.uses, arm.gains + earlier.gains)


def _lightened(arm: Arm) -> Arm:
    share = min(1.0, EARLIER_USES / max(arm.won + arm.lost, 1e-9))
    return Arm(arm.won * share, arm.lost * share, arm.uses, arm.gains)
