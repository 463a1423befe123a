"""How a run stands, read from its population store while it is written or long after: counts, best, islands, restarts, money."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evo.records import Evaluation, Event, EventKind, LatencyKind, Spent, Status, TrustLevel
from evo.reporting.lineages import traps_table, traps_text
from evo.search.allowed import began_with
from evo.search.digest import LEADERS, Digest, Happening, Place, Trouble
from evo.search.given_up import Abandoned, Totals
from population_store.base import PopulationStore, Ranked, RunHeader

KIND_WORDS: Mapping[LatencyKind, str] = {
    LatencyKind.MEASURED: "measured",
    LatencyKind.MODELLED: "modelled estimate",
    LatencyKind.SIMULATED: "simulated",
}
"""How latencies are called wherever a person sees them; an estimate must not pass for a measurement."""


@dataclass(frozen=True)
class IslandStatus:
    """One island: PASSED variants, the best fitness (0 for none), abandoned lineages (stalled and trapped) and arrivals."""

    task: str
    island: int
    passed: int
    fitness: float
    stalled: int
    trapped: int
    migrations: int


@dataclass(frozen=True)
class RunStatus:
    """One look at a store.

    Attributes:
        header, spent: As recorded.
        budget: Limits by name, of the newest session; those without a limit left out.
        counts: Task → status (or ``no_proposal``, ``repeated`` for a known variant, ``pending``) → requests.
        best: The top of the ranking of each task.
        trust: Task → trust level → PASSED variants, so that it is seen how much rests on less than a replay.
        checks: What verifications checked besides values and time, or why they could not, each with how often.
        islands: See `IslandStatus`.
        bills: Model name → (requests, dollars).
        troubles: Of the models that had some.
        happenings: Events to be shown, in order.
        end: The newest event with which a session ended or began.
        given_up: What all abandoned lineages cost and what the restarts after them gave.
        abandoned: The last of them.
    """

    header: RunHeader
    spent: Spent
    budget: Mapping[str, float]
    counts: Mapping[str, Mapping[str, int]]
    best: Mapping[str, tuple[Ranked, ...]]
    trust: Mapping[str, Mapping[TrustLevel, int]]
    checks: Mapping[str, int]
    islands: tuple[IslandStatus, ...]
    bills: Mapping[str, tuple[int, float]]
    troubles: Mapping[str, Trouble]
    happenings: tuple[Happening, ...]
    end: Event | None
    given_up: Totals
    abandoned: tuple[Abandoned, ...]

    @property
    def finished(self) -> str | None:
        """Why the run stopped; None while it runs or was killed."""
        return None if self.end is None or self.end.kind is EventKind.RESUMED else self.end.reason


class StatusReader:
    """Looks at one store repeatedly. Of the journal it reads what the newest digest in the store lacks, and that once."""

    def __init__(self, store: PopulationStore) -> None:
        self._store = store
        self._digest = Digest(store)

    def look(self, top: int = 5) -> RunStatus:
        """How the run stands now, with the best `top` variants per task."""
        digest, header = self._digest, self._store.header
        digest.follow()
        tasks: list[str] = list(json.loads(header.tasks))
        verified = {task: self._store.verified(task) for task in tasks}
        return RunStatus(
            header=header,
            spent=self._store.spent,
            budget=digest.allowed if digest.allowed is not None else began_with(header) or {},
            counts=digest.counts(),
            best={task: self._store.ranking(task, top) for task in tasks},
            trust={task: _trusts(digest.trust.get(task, {}), verified[task]) for task in tasks},
            checks=Counter(check for rows in verified.values() for row in rows if _stood(row) for check in _checks(row)),
            islands=self._islands(verified),
            bills=dict(digest.bills),
            troubles=dict(digest.troubles),
            happenings=digest.happenings(),
            end=digest.end,
            given_up=digest.given_up.totals,
            abandoned=digest.given_up.newest(),
        )

    def _islands(self, verified: Mapping[str, Sequence[Ranked]]) -> tuple[IslandStatus, ...]:
        passed, kinds = Counter(self._digest.passed), self._digest.kinds
        for task, rows in verified.items():
            passed.subtract(Place(task, row.request.island) for row in rows if not _stood(row))
        return tuple(
            IslandStatus(
                place.task,
                place.island,
                passed[place],
                self._best(place, verified.get(place.task, ())) if passed[place] else 0.0,
                *(kinds.get(place, Counter())[kind] for kind in (EventKind.STALLED, EventKind.TRAPPED, EventKind.MIGRATION)),
            )
            for place in sorted({*passed, *kinds}, key=lambda place: (place.task, place.island))
        )

    def _best(self, place: Place, verified: Sequence[Ranked]) -> float:
        """The best fitness of an island: as verified where it was, else as searched."""
        numbers = {row.number for row in verified}
        found = [row.verify.fitness for row in verified if row.verify and row.request.island == place.island]
        leaders = self._digest.leaders.get(place, [])
        searched = next((-negative for negative, number in leaders if number not in numbers), None)
        if searched is None and len(leaders) == LEADERS:  # all of them were verified, and there may be more
            rows = (row for row in self._store.ranking(place.task) if row.number not in numbers)
            searched = next((row.search.fitness for row in rows if row.request.island == place.island), None)
        return max([*found, searched or 0.0])


def render_status(status: RunStatus) -> RenderableType:
    """For a person."""
    parts: list[RenderableType] = [
        Text(f"{status.header.name}: {status.finished or 'not finished'} (seed {status.header.seed}, {status.header.created})"),
        Text(spent_line(status.spent, status.budget)),
        _counts_table(status.counts),
        best_table([row for rows in status.best.values() for row in rows]),
        *_trust_lines(status.trust),
        *(Text(f"verified {_with(check)}: {count}") for check, count in sorted(status.checks.items())),
        _islands_table(status.islands),
    ]
    if status.abandoned:
        parts += [traps_text(status.given_up), traps_table(status.abandoned)]
    if status.bills:
        bills = (f"{model}: {requests} requests, ${dollars:.2f}" for model, (requests, dollars) in sorted(status.bills.items()))
        parts.append(Text("models: " + "; ".join(bills)))
    for model, had in sorted(status.troubles.items()):
        parts.append(Text(f"{model}: {had.failed} requests failed, {had.refused} refused; the last: {_one_line(had.last, 300)}"))
    for happening in status.happenings:
        event = happening.event
        where = " ".join(part for part in (event.task, event.lineage) if part)
        died = "; the one before was cut off: its driver, engine or machine died" if happening.after_death else ""
        parts.append(Text(f"{event.kind.value} {where}: {event.reason}{died}"))
    return Group(*parts)


def best_table(rows: Sequence[Ranked]) -> Table:
    """Variants with what is known of them; verified figures where there are some."""
    columns = ("task", "variant", "operator", "strategy", "latency", "speedup (lower bound)", "error", "trust", "kind")
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        shown = row.verify or row.search
        table.add_row(
            row.request.task,
            row.variant.variant_id[:8],
            f"{row.request.operator} {row.request.lineage}",
            Text(_one_line(row.strategy, 48)),  # a strategy may hold square brackets, which are not markup
            f"{shown.latency_us:.2f} µs",
            f"{shown.speedup:.2f}× (≥ {shown.fitness:.2f})",
            f"{shown.error_ratio:.2f}",
            _trust(shown.trust, verified=row.verify is not None),
            kind_words(shown),
        )
    return table


def kind_words(evaluation: Evaluation) -> str:
    """``measured``, ``modelled estimate`` or ``simulated``."""
    return "" if evaluation.latency_kind is None else KIND_WORDS[evaluation.latency_kind]


def spent_line(spent: Spent, budget: Mapping[str, float]) -> str:
    """What is used, with the limits that there are."""
    figures = {"evaluations": spent.evaluations, "proposals": spent.proposals, "wall_s": spent.wall_s, "gpu_s": spent.gpu_s}
    names = {"evaluations": "evaluations", "proposals": "proposals", "wall_s": "s wall", "gpu_s": "s GPU"}
    parts = [
        f"{used:.0f}{f'/{budget[key]:g}' if key in budget else ''} {names[key]}"
        for key, used in figures.items()
        if used or key in budget or key == "evaluations"
    ]
    if spent.dollars or "dollars" in budget:
        limit = f" of ${budget['dollars']:.2f}" if "dollars" in budget else ""
        held = f" and ${spent.held_dollars:.2f} for requests whose bill is not known" if spent.held_dollars >= 0.005 else ""
        parts.append(f"${spent.dollars:.2f}{held}{limit}")
    if "tokens" in budget:
        parts.append(f"{spent.tokens + spent.held_tokens} of {budget['tokens']:g} tokens")
    return ", ".join(parts)


def _counts_table(counts: Mapping[str, Mapping[str, int]]) -> Table:
    table = Table("task", "requests", "by outcome", box=None, header_style="bold", pad_edge=False)
    for task, by_status in sorted(counts.items()):
        outcomes = ", ".join(f"{status} {count}" for status, count in sorted(by_status.items(), key=lambda item: -item[1]))
        table.add_row(task, str(sum(by_status.values())), outcomes)
    return table


def _islands_table(islands: Sequence[IslandStatus]) -> Table:
    columns = ("task", "island", "passed", "best", "stalled", "trapped", "migrations")
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for place in islands:
        figures = (place.passed, f"{place.fitness:.2f}", place.stalled, place.trapped, place.migrations)
        table.add_row(place.task, str(place.island), *map(str, figures))
    return table


def _trusts(searched: Mapping[TrustLevel, int], verified: Sequence[Ranked]) -> dict[TrustLevel, int]:
    """By level, the most trusted first: what verification found in place of what the search did."""
    found: Counter[TrustLevel | None] = Counter(searched)
    for row in verified:
        found[row.search.trust] -= 1
        if _stood(row):
            found[(row.verify or row.search).trust] += 1
    return {level: found[level] for level in TrustLevel if found[level]}


def _stood(row: Ranked) -> bool:
    """It passed its verification."""
    return row.verify is not None and row.verify.status is Status.PASSED


def _checks(row: Ranked) -> tuple[str, ...]:
    return () if row.verify is None else row.verify.checks


def _trust_lines(trust: Mapping[str, Mapping[TrustLevel, int]]) -> list[Text]:
    return [
        Text(f"trust {task}: " + ", ".join(f"{level.value} {n} ({n / sum(levels.values()):.0%})" for level, n in levels.items()))
        for task, levels in trust.items()
        if levels
    ]


def _with(check: str) -> str:
    name, missing, reason = check.partition(" not applied: ")
    return f"without {name} ({reason})" if missing else f"with {name}"


def _trust(trust: TrustLevel | None, *, verified: bool) -> str:
    return f"{trust.value if trust else ''}{', verified' if verified else ''}"


def _one_line(text: str, limit: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
