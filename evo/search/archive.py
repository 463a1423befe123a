"""What a task's search remembers: a small note on every variant, the full text only of those something still refers to."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from evo.records import Configuration, Evaluation, Request, Stage, Status, Variant
from operators.base import Parent

START = "start"
"""Operator name of requests that bring in starting kernels."""


@dataclass
class Note:
    """What is kept of every variant for the whole run.

    Attributes:
        variant_id: Whose note.
        request: The request it first came from.
        strategy: Summary of the proposal.
        chain: Failures in a row along its main parents that it ends; 0 unless it failed.
        status: None until evaluated.
        stage: Stage reached.
        fitness: As searched.
        score: What it is ranked by: fitness, for starting kernels relative to the baseline, and as verified once it was.
        speedup: Point estimate, relative to the baseline.
        latency_us: Geometric mean over cases, microseconds.
        chosen: Case name → configuration it was best in.
        verified: Verdict of its verification, None without one.
    """

    variant_id: str
    request: Request
    strategy: str
    chain: int = 0
    status: Status | None = None
    stage: Stage | None = None
    fitness: float = 0.0
    score: float = 0.0
    speedup: float = 0.0
    latency_us: float = float("inf")
    chosen: Mapping[str, Configuration] = field(default_factory=dict)
    verified: Status | None = None

    @property
    def is_start(self) -> bool:
        """It is a starting kernel."""
        return self.request.operator == START


class Archive:
    """Notes on all variants of one task, and held variants in full.

    A variant is held while anything refers to it (`hold`, `release`); after that its source is read from the store when needed.

    Args:
        load: Reads a variant that is not held.
    """

    def __init__(self, load: Callable[[str], Variant | None]) -> None:
        self._notes: dict[str, Note] = {}
        self._variants: dict[str, Variant] = {}
        self._evaluations: dict[str, Evaluation] = {}
        self._held: Counter[str] = Counter()
        self._children: dict[str, list[str]] = {}
        self._load = load

    def __contains__(self, variant_id: object) -> bool:
        return variant_id in self._notes

    def __getitem__(self, variant_id: str) -> Note:
        return self._notes[variant_id]

    def __iter__(self) -> Iterator[Note]:
        return iter(self._notes.values())

    def add(self, note: Note, variant: Variant) -> None:
        """Takes in a new variant, held once."""
        self._notes[note.variant_id] = note
        for parent in note.request.parents[:1]:
            self._children.setdefault(parent, []).append(note.variant_id)
        self._variants[note.variant_id] = variant
        self.hold(note.variant_id)

    def hold(self, *variant_ids: str) -> None:
        """Adds a reference to each."""
        self._held.update(variant_ids)

    def release(self, variant_ids: Iterable[str]) -> None:
        """Takes one reference from each; the last one lets go of source and evaluation."""
        for variant_id in variant_ids:
            self._held[variant_id] -= 1
            if self._held[variant_id] <= 0:
                del self._held[variant_id]
                self._variants.pop(variant_id, None)
                self._evaluations.pop(variant_id, None)

    def evaluated(self, evaluation: Evaluation) -> None:
        """Keeps the verdict with a held variant, less what only statistics need."""
        cases = tuple(dataclasses.replace(case, log_ratios=()) for case in evaluation.cases)
        self._evaluations[evaluation.variant_id] = dataclasses.replace(evaluation, cases=cases, trials=())

    def variant(self, variant_id: str) -> Variant:
        """The variant in full."""
        held = self._variants.get(variant_id) or self._load(variant_id)
        if held is None:
            raise KeyError(variant_id)
        return held

    def parent(self, variant_id: str) -> Parent:
        """The variant as operators see it; without its evaluation where it is not held any more."""
        return Parent(self.variant(variant_id), self._evaluations.get(variant_id), self._notes[variant_id].strategy)

    def children(self, variant_id: str) -> tuple[Note, ...]:
        """Variants that passed and have this one as their main parent, oldest first."""
        notes = (self._notes[child] for child in self._children.get(variant_id, ()))
        return tuple(note for note in notes if note.status is Status.PASSED)

    def is_ancestor(self, variant_id: str, of: Iterable[str]) -> bool:
        """Whether a variant is among `of` or their ancestors."""
        if variant_id not in self._notes:
            return False
        # Parents are always older than their children, so nothing older than the one sought can descend from it.
        oldest = self._notes[variant_id].request.number
        seen: set[str] = set()
        waiting = list(of)
        while waiting:
            current = waiting.pop()
            if current == variant_id:
                return True
            note = self._notes.get(current)
            if note is not None and current not in seen and note.request.number > oldest:
                seen.add(current)
                waiting.extend(note.request.parents)
        return False
