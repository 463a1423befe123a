"""Which variants of an island become parents, and which stay when it is full: tournament or MAP-Elites."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from evo.records import Evaluation
from evo.search.settings import SearchSettings

Cell = tuple[int, ...]
"""Where a variant lies in feature space: kernels, loops, matrix products, knobs, error bin, memory bin."""

_FEATURES = tuple(re.compile(text, re.MULTILINE) for text in (r"^@(?:triton\.)?jit\b", r"^\s+(?:for|while)\b", r"\btl\.dot\b"))
_KNOB_USE = re.compile(r"\bCONFIG\[")


@dataclass(frozen=True)
class Member:
    """A PASSED variant in an island.

    Attributes:
        variant_id: Who.
        number: The request it came from; breaks ties, older first.
        score: Fitness it is ranked by.
        lineage: The lineage it belongs to on this island.
        cell: See `Cell`.
    """

    variant_id: str
    number: int
    score: float
    lineage: str
    cell: Cell

    @property
    def order(self) -> tuple[float, int]:
        """Sorts members best first."""
        return -self.score, self.number


def feature_cell(source: str, evaluation: Evaluation) -> Cell:
    """The cell of a PASSED variant: structure counted in the source (capped), numerical error and memory in coarse bins."""
    kernels, loops, products = (min(len(pattern.findall(source)), 4) for pattern in _FEATURES)
    knobs = min(len(_KNOB_USE.findall(source)) // 2, 3)
    error = int(evaluation.error_ratio * 4) if 0 <= evaluation.error_ratio < 1 else 3
    memory = int(math.log2(max(evaluation.peak_bytes, 0) + 1) / 2)
    return kernels, loops, products, knobs, error, memory


class Selection(ABC):
    """A pair of rules: who becomes a parent and who has to leave."""

    @abstractmethod
    def pick(self, members: Sequence[Member], rng: np.random.Generator) -> Member:
        """One of `members` (not empty) as parent."""

    @abstractmethod
    def surplus(self, members: Collection[Member], keep: Collection[str]) -> tuple[Member, ...]:
        """Who has to leave; never a variant of `keep`."""


class Tournament(Selection):
    """The best of a few drawn at random becomes a parent; the worst leave.

    Args:
        size: How many are drawn (with replacement).
        capacity: How many stay.
    """

    def __init__(self, size: int, capacity: int) -> None:
        self._size = size
        self._capacity = capacity

    def pick(self, members: Sequence[Member], rng: np.random.Generator) -> Member:
        """See `Selection.pick`."""
        drawn = rng.integers(len(members), size=self._size)
        best: Member = min((members[int(place)] for place in drawn), key=lambda member: member.order)
        return best

    def surplus(self, members: Collection[Member], keep: Collection[str]) -> tuple[Member, ...]:
        """See `Selection.surplus`."""
        return _worst(members, keep, len(members) - self._capacity)


class MapElites(Selection):
    """Any cell's best is as likely a parent; each cell keeps its best (Mouret and Clune 2015).

    Args:
        capacity: How many stay, over all cells.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity

    def pick(self, members: Sequence[Member], rng: np.random.Generator) -> Member:
        """See `Selection.pick`."""
        best: dict[Cell, Member] = {}
        for member in sorted(members, key=lambda item: item.order):
            best.setdefault(member.cell, member)
        cells = sorted(best)
        return best[cells[int(rng.integers(len(cells)))]]

    def surplus(self, members: Collection[Member], keep: Collection[str]) -> tuple[Member, ...]:
        """See `Selection.surplus`."""
        taken: set[Cell] = set()
        beaten: list[Member] = []
        for member in sorted(members, key=lambda item: item.order):
            if member.cell in taken and member.variant_id not in keep:
                beaten.append(member)
            taken.add(member.cell)
        rest = [member for member in members if member not in beaten]
        return (*beaten, *_worst(rest, keep, len(rest) - self._capacity))


def make_selection(settings: SearchSettings) -> Selection:
    """The selection a user named."""
    if settings.selection == "map_elites":
        return MapElites(settings.island_capacity)
    return Tournament(settings.tournament_size, settings.island_capacity)


def _worst(members: Collection[Member], keep: Collection[str], count: int) -> tuple[Member, ...]:
    if count <= 0:
        return ()
    ranked = sorted((member for member in members if member.variant_id not in keep), key=lambda item: item.order)
    return tuple(ranked[-count:])
