"""Lineages, and when one is given up: stalled, or caught in a debugging trap."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from evo.records import EventKind
from evo.search.settings import SearchSettings

LESSONS_KEPT = 8


@dataclass
class Lineage:
    """A root and what descends from it on one island, until it is abandoned.

    A lineage whose variants never passed is judged by the same rules: `best` stays 0, so that it stalls, and its failures
    follow upon each other, so that it is trapped.

    Attributes:
        name: ``task/island/ordinal``.
        root: Variant it began with.
        root_score: The score of that one then.
        best: Highest score in it.
        avoid: Operators tried in the lineage it replaces; its first child comes from another one where there is another.
        replaces: It was begun in place of an abandoned lineage.
        abandoned: No new requests for it.
        evaluated: Children evaluated.
        since_gain: Children evaluated since `best` last rose.
        failures_in_a_row: Longest chain of failed parent and failed child (a repair of a repair …).
        signatures: Error signatures since it last passed.
        repeats: The ancestor that a child repeated, if one did.
        tried: Uses of each operator.
        strategies: Summaries of its newest proposals.
        repairs: Repairs in vain (a child that failed too, or none at all) since it last passed.
        lessons: What its failures taught, as models said it, newest last; a lineage that replaces another one inherits them.
        dollars, dollars_since_gain: Price of its exchanges, in all and since `best` last rose.
    """

    name: str
    root: str
    root_score: float = 0.0
    best: float = 0.0
    avoid: frozenset[str] = frozenset()
    replaces: bool = False
    abandoned: bool = False
    evaluated: int = 0
    since_gain: int = 0
    failures_in_a_row: int = 0
    signatures: Counter[str] = field(default_factory=Counter)
    repeats: str = ""
    tried: Counter[str] = field(default_factory=Counter)
    strategies: deque[str] = field(default_factory=lambda: deque(maxlen=4))
    repairs: int = 0
    lessons: deque[str] = field(default_factory=lambda: deque(maxlen=LESSONS_KEPT))
    dollars: float = 0.0
    dollars_since_gain: float = 0.0

    def passed(self, score: float) -> None:
        """A child passed with this score."""
        self._count(score)
        self.signatures.clear()
        self.failures_in_a_row = self.repairs = 0

    def failed(self, signature: str, chain: int) -> None:
        """A child failed as the last of `chain` failures, each a child of the one before."""
        self._count(0.0)
        self.failures_in_a_row = max(self.failures_in_a_row, chain)
        if signature:
            self.signatures[signature] += 1

    def untried(self, operator: str) -> None:
        """A use of an operator came to nothing for reasons that lie elsewhere."""
        self.tried[operator] -= 1
        if not self.tried[operator]:
            del self.tried[operator]

    def repaired_in_vain(self) -> None:
        """A repair led to nothing that passes."""
        self.repairs += 1

    def paid(self, dollars: float) -> None:
        """Exchanges with a model were made for it."""
        self.dollars += dollars
        self.dollars_since_gain += dollars

    def learned(self, lesson: str) -> None:
        """A model named what a failure teaches; said again, it moves to the end."""
        if lesson in self.lessons:
            self.lessons.remove(lesson)
        self.lessons.append(lesson)

    def repeated(self, ancestor: str) -> None:
        """A child turned out to be one of its own ancestors, in its source or in what it launches."""
        self.repeats = ancestor

    def welcomed(self, score: float) -> None:
        """A variant from another island joined; from here on its score is the one to beat."""
        if score > self.best:
            self.best, self.since_gain, self.dollars_since_gain = score, 0, 0.0

    def verdict(self, settings: SearchSettings) -> tuple[EventKind, str] | None:
        """STALLED or TRAPPED with the reason, or None to go on."""
        if self.abandoned:
            return None
        if self.repeats:
            return EventKind.TRAPPED, f"a child repeats its ancestor {self.repeats}"
        if self.repairs >= settings.max_repairs:
            return EventKind.TRAPPED, f"{self.repairs} repairs in vain since it last passed"
        if self.failures_in_a_row >= settings.max_repairs:
            return EventKind.TRAPPED, f"{self.failures_in_a_row} failures in a row, each made from the one before"
        for signature, count in self.signatures.items():
            if count >= settings.signature_limit:
                return EventKind.TRAPPED, f"{count} times the same error since it last passed: {signature}"
        if self.since_gain >= settings.stall_limit:
            what = f"a gain over fitness {self.best:.3f}" if self.best > 0 else "one that passes"
            return EventKind.STALLED, f"{self.since_gain} evaluated proposals without {what}"
        return None

    def _count(self, score: float) -> None:
        self.evaluated += 1
        self.since_gain += 1
        self.welcomed(score)
