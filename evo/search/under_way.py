"""Counts of a task's requests that are proposed or evaluated at this moment, by what decisions ask for."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from evo.records import Request


class UnderWay:
    """Follows requests from decision to verdict, so that no decision has to look at all of them.

    Attributes:
        proposing: Lineage → requests without an outcome.
        parents: Variant → requests that have it as their main parent.
        repairs: Lineage → requests whose main parent failed.
    """

    KEPT: ClassVar = ("proposing", "parents", "repairs")

    def __init__(self) -> None:
        self.proposing: Counter[str] = Counter()
        self.parents: Counter[str] = Counter()
        self.repairs: Counter[str] = Counter()

    def asked(self, request: Request, *, repair: bool) -> None:
        """A request was made."""
        self.proposing[request.lineage] += 1
        self._count(request, 1, repair)

    def answered(self, request: Request) -> None:
        """Its outcome is there."""
        _add(self.proposing, request.lineage, -1)

    def ended(self, request: Request, *, repair: bool) -> None:
        """It has led to a verdict, or to nothing new."""
        self._count(request, -1, repair)

    def _count(self, request: Request, change: int, repair: bool) -> None:
        if request.parents:
            _add(self.parents, request.parents[0], change)
            if repair:
                _add(self.repairs, request.lineage, change)


def _add(counts: Counter[str], key: str, change: int) -> None:
    counts[key] += change
    if not counts[key]:
        del counts[key]
