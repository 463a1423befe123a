"""Lineages, and when one is given up: stalled, or caught in a debugging trap."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from evo.records import EventKind
from evo.search.settings import SearchSettings


@dataclass
class Lineage:
    """A root and what descends from it on one island, until it is abandoned.

    A lineage whose variants never passed is judged by the same rules: `best` stays 0, so that it stalls, and its failures
    follow upon each other, so that it is trapped.

    Attributes:
        name: ``task/island/ordinal``.
        root: Variant it began with.
        best: Highest score in it.
        avoid: Operators tried in the lineage it replaces; its first child comes from another one where there is another.
        abandoned: No new requests for it.
        evaluated: Children evaluated.
        since_gain: Children evaluated since `best` last rose.
        failures_in_a_row: Longest chain of failed parent and failed child (a repair of a repair …).
        signatures: Error signatures since it last passed.
        repeats: The ancestor that a child repeated, if one did.
        tried: Uses of each operator.
        strategies: Summaries of its newest proposals.
    """

    name: str
    root: str
    best: float = 0.0
    avoid: frozenset[str] = frozenset()
    abandoned: bool = False
    evaluated: int = 0
    since_gain: int = 0
    failures_in_a_row: int = 0
    signatures: Counter[str] = field(default_factory=Counter)
    repeats: str = ""
    tried: Counter[str] = field(default_factory=Counter)
    strategies: deque[str] = field(default_factory=lambda: deque(maxlen=4))

    def passed(self, score: float) -> None:
        """A child passed with this score."""
        self._count(score)
        self.signatures.clear()
        self.failures_in_a_row = 0

    def failed(self, signature: str, chain: int) -> None:
        """A child failed as the last of `chain` failures, each a child of the one before."""
        self._count(0.0)
        self.failures_in_a_row = max(self.failures_in_a_row, chain)
        if signature:
            self.signatures[signature] += 1

    def repeated(self, ancestor: str) -> None:
        """A child turned out to be one of its own ancestors, in its source or in what it launches."""
        self.repeats = ancestor

    def welcomed(self, score: float) -> None:
        """A variant from another island joined; from here on its score is the one to beat."""
        if score > self.best:
            self.best, self.since_gain = score, 0

    def verdict(self, settings: SearchSettings) -> tuple[EventKind, str] | None:
        """STALLED or TRAPPED with the reason, or None to go on."""
        if self.abandoned:
            return None
        if self.repeats:
            return EventKind.TRAPPED, f"a child repeats its ancestor {self.repeats}"
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
