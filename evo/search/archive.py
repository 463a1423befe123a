"""What a task's search remembers: variants that something still refers to, whatever the length of the run."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from evo.records import Configuration, Evaluation, Request, Stage, Status, Variant
from operators.base import Parent

START = "start"
"""Operator name of requests that bring in starting kernels."""

ANCESTORS_KEPT = 64
"""Nearest ancestors that a variant is known to descend from: who repeats one goes in a circle."""

KIN_KEPT = 3
"""Newest children that passed, of each variant."""


@dataclass(frozen=True)
class Kin:
    """A child that passed.

    Attributes:
        number: Of the request it came from.
        score: As searched.
        chosen: Case name → configuration it was best in.
    """

    number: int
    score: float
    chosen: Mapping[str, Configuration]


@dataclass
class Note:
    """What is kept of a variant beside its text.

    Attributes:
        variant_id: Whose note.
        request: The request it first came from.
        strategy: Summary of the proposal.
        chain: Failures in a row along its main parents that it ends; 0 unless it failed.
        before: Its main parent's score, as that was when this was evaluated.
        status: None until evaluated.
        stage: Stage reached.
        fitness: As searched.
        score: What it is ranked by: fitness, for starting kernels relative to the baseline, and as verified once it was.
        speedup: Point estimate, relative to the baseline.
        latency_us: Geometric mean over cases, microseconds.
        chosen: Case name → configuration it was best in.
        verified: Verdict of its verification, None without one.
        ancestors: The nearest, from its evaluation on.
        children: The newest that passed and have it as their main parent, oldest first.
    """

    variant_id: str
    request: Request
    strategy: str
    chain: int = 0
    before: float = 0.0
    status: Status | None = None
    stage: Stage | None = None
    fitness: float = 0.0
    score: float = 0.0
    speedup: float = 0.0
    latency_us: float = float("inf")
    chosen: Mapping[str, Configuration] = field(default_factory=dict)
    verified: Status | None = None
    ancestors: tuple[str, ...] = ()
    children: tuple[Kin, ...] = ()

    @property
    def is_start(self) -> bool:
        """It is a starting kernel."""
        return self.request.operator == START


class Archive:
    """Variants of one task that are held, each with its note and its verdict.

    A variant is held while anything refers to it (`hold`, `release`); after that it can be read from the store, and its note is gone.

    Args:
        load: Reads a variant from the store.
    """

    KEPT: ClassVar = ("_notes", "_evaluations", "_held")

    def __init__(self, load: Callable[[str], Variant | None]) -> None:
        self._notes: dict[str, Note] = {}
        self._variants: dict[str, Variant] = {}
        self._evaluations: dict[str, Evaluation] = {}
        self._held: Counter[str] = Counter()
        self._load = load

    def __contains__(self, variant_id: object) -> bool:
        return variant_id in self._notes

    def __getitem__(self, variant_id: str) -> Note:
        return self._notes[variant_id]

    def get(self, variant_id: str) -> Note | None:
        """The note on a variant; None if it is not held any more."""
        return self._notes.get(variant_id)

    def __len__(self) -> int:
        return len(self._notes)

    def add(self, note: Note, variant: Variant) -> None:
        """Takes in a new variant, held once."""
        self._notes[note.variant_id] = note
        self._variants[note.variant_id] = variant
        self.hold(note.variant_id)

    def hold(self, *variant_ids: str) -> None:
        """Adds a reference to each."""
        for variant_id in variant_ids:
            self._held[variant_id] += 1

    def release(self, variant_ids: Iterable[str]) -> None:
        """Takes one reference from each; the last one lets go of it."""
        for variant_id in variant_ids:
            self._held[variant_id] -= 1
            if self._held[variant_id] <= 0:
                del self._held[variant_id]
                for kept in (self._notes, self._variants, self._evaluations):
                    kept.pop(variant_id, None)

    def evaluated(self, evaluation: Evaluation) -> None:
        """Keeps the verdict with a held variant, less what only statistics need."""
        if evaluation.trials or any(case.log_ratios for case in evaluation.cases):
            cases = tuple(dataclasses.replace(case, log_ratios=()) for case in evaluation.cases)
            evaluation = dataclasses.replace(evaluation, cases=cases, trials=())
        self._evaluations[evaluation.variant_id] = evaluation

    def descends(self, note: Note) -> None:
        """Notes the ancestors of an evaluated variant, whose parents are held: nearer ones first, main parents before others."""
        parents = [self._notes[parent] for parent in note.request.parents]
        further = itertools.zip_longest(*(parent.ancestors for parent in parents))
        found = dict.fromkeys(itertools.chain(note.request.parents, (item for level in further for item in level if item)))
        note.ancestors = tuple(found)[:ANCESTORS_KEPT]

    def passed(self, note: Note) -> None:
        """Notes an evaluated variant that passed with its main parent, which is held."""
        for parent in note.request.parents[:1]:
            older = self._notes[parent]
            kin = (*older.children, Kin(note.request.number, note.score, note.chosen))
            older.children = tuple(sorted(kin, key=lambda item: item.number)[-KIN_KEPT:])

    def variant(self, variant_id: str) -> Variant:
        """The variant in full."""
        held = self._variants.get(variant_id)
        if held is None:
            held = self._load(variant_id)
            if held is None:
                raise KeyError(variant_id)
            if variant_id in self._notes:
                self._variants[variant_id] = held
        return held

    def parent(self, variant_id: str) -> Parent:
        """A held variant as operators see it."""
        return Parent(self.variant(variant_id), self._evaluations.get(variant_id), self._notes[variant_id].strategy)

    def is_ancestor(self, variant_id: str, of: Iterable[str]) -> bool:
        """Whether a variant is among some held ones or their nearest ancestors."""
        return any(variant_id == held or variant_id in self._notes[held].ancestors for held in of)
