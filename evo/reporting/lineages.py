"""What traps cost and what the restarts after them gave, read from a run's journal."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from evo.records import Event, EventKind, Request
from population_store.base import Entry, EvaluationEntry, OutcomeEntry, Purpose

SHOWN = 8


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


class LineageReader:
    """Takes a journal's entries in order, a few at a time."""

    def __init__(self) -> None:
        self._lineages: dict[int, str] = {}
        self._figures: dict[str, LineageFigures] = {}
        self._abandoned: list[Abandoned] = []

    def see(self, entry: Entry) -> None:
        """The next entry."""
        if isinstance(entry, Request):
            self._lineages[entry.number] = entry.lineage
        elif isinstance(entry, Event):
            self._event(entry)
        elif isinstance(entry, OutcomeEntry):
            lineage = self._lineages[entry.number]
            paid = math.fsum(exchange.usage.dollars for exchange in entry.outcome.exchanges)
            now = self._figures.get(lineage, LineageFigures())
            self._figures[lineage] = dataclasses.replace(
                now,
                proposals=now.proposals + 1,
                dollars=now.dollars + paid,
                dollars_since_gain=now.dollars_since_gain + paid,
            )
        elif isinstance(entry, EvaluationEntry) and entry.purpose is Purpose.SEARCH:
            self._evaluated(entry)

    def abandoned(self) -> tuple[Abandoned, ...]:
        """Lineages given up so far, in order."""
        return tuple(
            dataclasses.replace(item, given=self._figures.get(item.successor, LineageFigures())) for item in self._abandoned
        )

    def _evaluated(self, entry: EvaluationEntry) -> None:
        lineage = self._lineages[entry.number]
        now = self._figures.get(lineage, LineageFigures())
        gained = entry.evaluation.fitness > now.best
        self._figures[lineage] = dataclasses.replace(
            now,
            evaluations=now.evaluations + 1,
            best=max(now.best, entry.evaluation.fitness),
            dollars_since_gain=0.0 if gained else now.dollars_since_gain,
        )

    def _event(self, event: Event) -> None:
        if event.kind in (EventKind.STALLED, EventKind.TRAPPED):
            figures = self._figures.get(event.lineage, LineageFigures())
            self._abandoned.append(Abandoned(event.lineage, event.kind, event.reason, figures))
        elif event.kind is EventKind.RESTART and self._abandoned:
            last = self._abandoned[-1]
            # An abandonment and the restart that follows from it are recorded one after the other.
            if not last.successor and _place(last.lineage) == _place(event.lineage):
                self._abandoned[-1] = dataclasses.replace(last, successor=event.lineage)


def traps_text(abandoned: Sequence[Abandoned]) -> Text:
    """One line for a person."""
    kinds = [item.kind for item in abandoned]
    lost = math.fsum(item.figures.dollars_since_gain for item in abandoned)
    begun = [item for item in abandoned if item.successor]
    better = sum(item.gained for item in begun)
    price = f", ${lost:.2f} spent on them since their last gain" if lost else ""
    return Text(
        f"given up: {kinds.count(EventKind.TRAPPED)} trapped and {kinds.count(EventKind.STALLED)} stalled lineages{price}; "
        f"{better} of {len(begun)} restarts found something better than what they replaced"
    )


def traps_table(abandoned: Sequence[Abandoned]) -> Table:
    """The newest lineages that were given up, each with the one in its place."""
    columns = ("given up", "why", "proposals", "evaluations", "cost", "best", "restart", "its best", "its cost")
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for item in abandoned[-SHOWN:]:
        reason = " ".join(item.reason.split())
        table.add_row(
            item.lineage,
            Text(f"{item.kind.value}: {reason if len(reason) <= 60 else reason[:59] + '…'}"),
            str(item.figures.proposals),
            str(item.figures.evaluations),
            f"${item.figures.dollars:.2f}",
            f"{item.figures.best:.2f}" if item.figures.best else "-",
            item.successor or "-",
            f"{item.given.best:.2f}" if item.given.best else "-",
            f"${item.given.dollars:.2f}",
        )
    return table


def _place(lineage: str) -> str:
    """Task and island of a lineage."""
    return lineage.rpartition("/")[0]
