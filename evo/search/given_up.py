"""What traps cost and what the restarts after them gave, followed entry by entry in memory that does not grow with the run."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, deque
from dataclasses import dataclass
from typing import ClassVar

from evo.records import Evaluation, Event, EventKind, NoProposal, Proposal

SHOWN = 8
"""Newest lineages that were given up, of which everything is kept."""


@dataclass(frozen=True)
class LineageFigures:
    """What was spent on a lineage and what came of it.

    Attributes:
        proposals, evaluations: Made for it.
        dollars: Price of its exchanges.
        dollars_since_gain: Of it, since its fitness last rose.
        best: Highest search fitness of its children; 0 for none that passed.
    """

    proposals: int = 0
    evaluations: int = 0
    dollars: float = 0.0
    dollars_since_gain: float = 0.0
    best: float = 0.0


@dataclass(frozen=True)
class Abandoned:
    """A lineage that was given up, and the one in its place.

    Attributes:
        lineage: Its name.
        kind: STALLED or TRAPPED.
        reason: As recorded.
        figures: When it was given up.
        successor: The lineage that was begun in its place; empty where none was.
        given: What came of that one so far.
    """

    lineage: str
    kind: EventKind
    reason: str
    figures: LineageFigures
    successor: str = ""
    given: LineageFigures = LineageFigures()

    @property
    def gained(self) -> bool:
        """The restart found something better than the lineage it replaced."""
        return self.given.best > self.figures.best


@dataclass(frozen=True)
class Totals:
    """Of all lineages that were given up.

    Attributes:
        trapped, stalled: How many.
        dollars: Spent on them since their last gain.
        restarts: Lineages begun in their place.
        better: Of those, the ones that found something better than what they replaced.
    """

    trapped: int = 0
    stalled: int = 0
    dollars: float = 0.0
    restarts: int = 0
    better: int = 0


class GivenUp:
    """Takes what happened to lineages, in the order of the journal.

    Of a lineage that was given up, figures are kept until its last request has ended and it is not shown any more.
    """

    KEPT: ClassVar = ("totals", "_figures", "_newest", "_to_beat", "_requests", "_ended")

    def __init__(self) -> None:
        self.totals = Totals()
        self._figures: dict[str, LineageFigures] = {}
        self._newest: deque[Abandoned] = deque()
        self._to_beat: dict[str, float] = {}  # of restarts that found nothing better yet
        self._requests: Counter[str] = Counter()  # under way
        self._ended: dict[str, None] = {}

    def newest(self) -> tuple[Abandoned, ...]:
        """Lineages given up last, in order."""
        return tuple(dataclasses.replace(item, given=self._of(item.successor)) for item in self._newest)

    def asked(self, lineage: str) -> None:
        """A request was made for it."""
        self._requests[lineage] += 1

    def answered(self, lineage: str, outcome: Proposal | NoProposal) -> None:
        """What came of a request for it."""
        now, paid = self._of(lineage), math.fsum(exchange.usage.dollars for exchange in outcome.exchanges)
        self._figures[lineage] = dataclasses.replace(
            now,
            proposals=now.proposals + 1,
            dollars=now.dollars + paid,
            dollars_since_gain=now.dollars_since_gain + paid,
        )

    def evaluated(self, lineage: str, evaluation: Evaluation) -> None:
        """A verdict of the search on a child of it."""
        now, fitness = self._of(lineage), evaluation.fitness
        self._figures[lineage] = dataclasses.replace(
            now,
            evaluations=now.evaluations + 1,
            best=max(now.best, fitness),
            dollars_since_gain=0.0 if fitness > now.best else now.dollars_since_gain,
        )
        if fitness > self._to_beat.get(lineage, math.inf):
            del self._to_beat[lineage]
            self.totals = dataclasses.replace(self.totals, better=self.totals.better + 1)

    def done(self, lineage: str) -> None:
        """A request for it has ended."""
        self._requests[lineage] -= 1
        if not self._requests[lineage]:
            del self._requests[lineage]
        self._forget(lineage)

    def happened(self, event: Event) -> None:
        """An event of any kind."""
        if event.kind in (EventKind.STALLED, EventKind.TRAPPED):
            self._abandoned(event)
        elif event.kind is EventKind.RESTART and self._newest:
            last = self._newest[-1]
            # An abandonment and the restart that follows from it are recorded one after the other.
            if not last.successor and _place(last.lineage) == _place(event.lineage):
                self._newest[-1] = dataclasses.replace(last, successor=event.lineage)
                self._to_beat[event.lineage] = last.figures.best
                self.totals = dataclasses.replace(self.totals, restarts=self.totals.restarts + 1)

    def _abandoned(self, event: Event) -> None:
        figures, totals = self._of(event.lineage), self.totals
        self._newest.append(Abandoned(event.lineage, event.kind, event.reason, figures))
        self.totals = dataclasses.replace(
            totals,
            trapped=totals.trapped + (event.kind is EventKind.TRAPPED),
            stalled=totals.stalled + (event.kind is EventKind.STALLED),
            dollars=totals.dollars + figures.dollars_since_gain,
        )
        self._ended[event.lineage] = None
        self._forget(event.lineage)
        if len(self._newest) > SHOWN:
            self._forget(self._newest.popleft().successor)

    def _of(self, lineage: str) -> LineageFigures:
        return self._figures.get(lineage, LineageFigures())

    def _forget(self, lineage: str) -> None:
        """Lets go of a lineage of which nothing more can come, unless it is shown."""
        shown = any(item.successor == lineage for item in self._newest)
        if lineage in self._ended and lineage not in self._requests and not shown:
            del self._ended[lineage]
            for kept in (self._figures, self._to_beat):
                kept.pop(lineage, None)


def _place(lineage: str) -> str:
    """Task and island of a lineage."""
    return lineage.rpartition("/")[0]
