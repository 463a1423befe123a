"""Search policies around one language model: ours, and those of GEAK and OpenEvolve as their papers and documentation describe them.

Each is restated here in our words as a rule for what to ask next; none of their code is used. All of them ask by the same prompts of
ours, so that what differs is whom they choose as parents, when they repair, when they give up, and what they evaluate again.

GEAK (AMD, arXiv 2507.23194): one chain of attempts. A failure is reflected upon (a request of its own) and repaired; after five repairs
in vain of a kernel that descends from a correct one, a fresh strategy begins. Correct kernels enter a pool of five, from which the
optimizer works. Two faults of the published program are kept, or mended in an arm of their own: a chain that was never correct is
repaired without end, and a full pool loses its best member instead of its worst.

OpenEvolve (after AlphaEvolve, arXiv 2506.13131): islands with a grid of features each (MAP-Elites). A parent is drawn from the island
at random, from the best, or from anywhere; a failed program has score 0, stays, and may be a parent, with its error shown. No repairs are
bounded, nothing is abandoned. Every so many programs the best of an island are copied to the next.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from evo.records import Evaluation, Status, Variant
from evo.search.toy import genes_of
from operators.base import Parent

REPAIRS = 5
POOL = 5
ISLANDS = 5
EXPLORATION, EXPLOITATION = 0.2, 0.7
MIGRATION_EVERY = 50
MIGRATION_SHARE = 0.1
ARCHIVE = 20
BINS = 10


@dataclass(frozen=True)
class Question:
    """What a policy asks next.

    Attributes:
        operator: Name of the operator whose prompt asks it.
        parents: As many as that takes.
        history: Shown, ascending by measured latency.
        reflect: A request of its own about the failure comes first, and is paid for.
    """

    operator: str
    parents: tuple[Parent, ...]
    history: tuple[Parent, ...] = ()
    reflect: bool = False


class Policy(ABC):
    """Decides what to ask; is told what came of it. It sees no landscape and no budget.

    Args:
        rng: Its only randomness.
    """

    name: ClassVar[str]

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    @abstractmethod
    def ask(self) -> Question:
        """The next question."""

    @abstractmethod
    def tell(self, question: Question, child: Parent | None) -> None:
        """What came of it: an evaluated child, or nothing that could be used."""


def latency(parent: Parent) -> float:
    """Of a correct one, microseconds; infinite otherwise."""
    passed = parent.evaluation is not None and parent.evaluation.status is Status.PASSED
    return parent.evaluation.latency_us if passed and parent.evaluation is not None else float("inf")


class GeakLoop(Policy):
    """See the module's docstring."""

    name: ClassVar[str] = "geak"
    mended: ClassVar[bool] = False

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(rng)
        self._pool: list[Parent] = []
        self._failed: Parent | None = None
        self._repairs = 0

    def ask(self) -> Question:
        """Repairs what failed, else optimizes the best of the pool, else generates."""
        history = tuple(sorted(self._pool, key=latency, reverse=True))
        if self._failed is not None:
            return Question("llm_repair", (self._failed,), history, reflect=True)
        if not self._pool:
            return Question("llm_generate", ())
        return Question("llm_optimize", (min(self._pool, key=latency),), history)

    def tell(self, question: Question, child: Parent | None) -> None:
        """A correct child enters the pool; after the last repair in vain the failure is dropped."""
        if child is not None and latency(child) < float("inf"):
            self._enter(child)
            self._failed, self._repairs = None, 0
            return
        self._repairs += question.operator == "llm_repair"
        self._failed = child or self._failed
        may_give_up = bool(self._pool) or self.mended
        if may_give_up and self._repairs >= REPAIRS:
            self._failed, self._repairs = None, 0

    def _enter(self, child: Parent) -> None:
        if len(self._pool) == POOL:
            leaving = (max if self.mended else min)(self._pool, key=latency)
            self._pool.remove(leaving)
        self._pool.append(child)


class MendedGeakLoop(GeakLoop):
    """The same without the two faults."""

    name: ClassVar[str] = "geak_mended"
    mended: ClassVar[bool] = True


@dataclass
class _Isle:
    grid: dict[tuple[int, int], Parent] = field(default_factory=dict)
    since_migration: int = 0


class OpenEvolveLoop(Policy):
    """See the module's docstring."""

    name: ClassVar[str] = "openevolve"

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(rng)
        self._isles = [_Isle() for _ in range(ISLANDS)]
        self._turn = 0

    def ask(self) -> Question:
        """One parent of the island whose turn it is; before there is any program, the first one."""
        isle = self._isles[self._turn % ISLANDS]
        everywhere = [program for each in self._isles for program in each.grid.values()]
        if not everywhere:
            return Question("llm_generate", ())
        local = list(isle.grid.values()) or everywhere
        draw = self._rng.random()
        if draw < EXPLORATION:
            parent = self._drawn(local)
        elif draw < EXPLORATION + EXPLOITATION:
            parent = self._drawn(sorted(everywhere, key=latency)[:ARCHIVE])
        else:
            parent = self._drawn(everywhere)
        best = sorted((item for item in local if latency(item) < float("inf")), key=latency)[:3]
        operator = "llm_optimize" if latency(parent) < float("inf") else "llm_repair"
        return Question(operator, (parent,), tuple(reversed(best)))

    def tell(self, question: Question, child: Parent | None) -> None:
        """The child takes its cell where it is better than who is there; the first program goes to every island."""
        isle = self._isles[self._turn % ISLANDS]
        self._turn += 1
        if child is None:
            return
        isles = self._isles if not question.parents else [isle]
        for each in isles:
            _place(each, child)
        isle.since_migration += 1
        if isle.since_migration >= MIGRATION_EVERY:
            isle.since_migration = 0
            following = self._isles[(self._isles.index(isle) + 1) % ISLANDS]
            ranked = sorted(isle.grid.values(), key=latency)
            for program in ranked[: max(1, round(MIGRATION_SHARE * len(ranked)))]:
                _place(following, program)

    def _drawn(self, programs: list[Parent]) -> Parent:
        return programs[int(self._rng.integers(len(programs)))]


def _place(isle: _Isle, program: Parent) -> None:
    """By its features: how complex it is, and how it is composed; both in bins."""
    raised = sorted(name for name, value in genes_of(program.variant.source).items() if value)
    cell = len(raised) * BINS // 17, sum(map(ord, "".join(raised))) % BINS
    held = isle.grid.get(cell)
    if held is None or latency(program) < latency(held):
        isle.grid[cell] = program


def child_of(variant: Variant, evaluation: Evaluation, strategy: str) -> Parent:
    """An evaluated child as policies keep it, without what only statistics need."""
    return Parent(variant, dataclasses.replace(evaluation, trials=()), strategy)
