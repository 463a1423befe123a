"""How a run stands, read from its population store while it is written or long after: counts, best, islands, restarts, money."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evo.exchanges import REFUSAL
from evo.records import Evaluation, Event, EventKind, LatencyKind, NoProposal, Request, Spent, TrustLevel
from evo.reporting.lineages import Abandoned, LineageReader, traps_table, traps_text
from population_store.base import EvaluationEntry, OutcomeEntry, PopulationStore, Purpose, Ranked, RunHeader

KIND_WORDS: Mapping[LatencyKind, str] = {
    LatencyKind.MEASURED: "measured",
    LatencyKind.MODELLED: "modelled estimate",
    LatencyKind.SIMULATED: "simulated",
}
"""How latencies are called wherever a person sees them; an estimate must not pass for a measurement."""

_ENDS = (EventKind.STOPPED, EventKind.RESUMED, EventKind.PROPOSED, EventKind.EVALUATED)
"""Where sessions end, or begin."""

SHOWN_EVENTS = 5
SHOWN_FAULTS = 12
"""Of the cluster's, besides."""


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
class Trouble:
    """How many requests of a model failed, how many it refused, and why the last one came to nothing."""

    failed: int = 0
    refused: int = 0
    last: str = ""


@dataclass(frozen=True)
class RunStatus:
    """One look at a store.

    Attributes:
        header, spent: As recorded.
        budget: Limits by name, from the recorded configuration; those without a limit left out.
        counts: Task → status (or ``no_proposal``, ``repeated`` for a known variant, ``pending``) → requests.
        best: The top of the ranking of each task.
        trust: Task → trust level → PASSED variants, so that it is seen how much rests on less than a replay.
        checks: What verifications checked besides values and time, or why they could not, each with how often.
        islands: See `IslandStatus`.
        bills: Model name → (requests, dollars).
        troubles: Of the models that had some.
        events: All events.
        abandoned: Lineages given up, what they cost and what the restarts after them gave.
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
    events: tuple[Event, ...]
    abandoned: tuple[Abandoned, ...] = ()
    troubles: Mapping[str, Trouble] = field(default_factory=dict)

    @property
    def finished(self) -> str | None:
        """Why the run stopped; None while it runs or was killed."""
        ends = [event for event in self.events if event.kind in _ENDS]
        return ends[-1].reason if ends and ends[-1].kind is not EventKind.RESUMED else None


class StatusReader:
    """Looks at one store repeatedly; the journal is read once, not once per look."""

    def __init__(self, store: PopulationStore) -> None:
        self._store = store
        self._read_up_to = 0
        self._bills: dict[str, tuple[int, float]] = {}
        self._troubles: dict[str, Trouble] = {}
        self._tasks: dict[int, str] = {}
        self._outcomes: dict[int, str] = {}
        self._known: set[str] = set()
        self._lineages = LineageReader()

    def look(self, top: int = 5) -> RunStatus:
        """How the run stands now, with the best `top` variants per task."""
        self._read_journal()
        header, events = self._store.header, self._store.events()
        rankings = {task: self._store.ranking(task) for task in json.loads(header.tasks)}
        limits: dict[str, Any] = json.loads(header.config).get("budget", {})
        return RunStatus(
            header=header,
            spent=self._store.spent,
            budget={name: limit for name, limit in limits.items() if limit is not None},
            counts=self._counts(),
            best={task: rows[:top] for task, rows in rankings.items()},
            trust={task: _trusts(rows) for task, rows in rankings.items()},
            checks=Counter(check for rows in rankings.values() for row in rows if row.verify for check in row.verify.checks),
            islands=_islands(rankings, events),
            bills=dict(self._bills),
            troubles=dict(self._troubles),
            events=events,
            abandoned=self._lineages.abandoned(),
        )

    def _read_journal(self) -> None:
        for sequence, entry in self._store.journal(self._read_up_to):
            self._read_up_to = sequence
            self._lineages.see(entry)
            if isinstance(entry, Request):
                self._tasks[entry.number] = entry.task
                self._outcomes[entry.number] = "pending"
            elif isinstance(entry, OutcomeEntry):
                self._outcome(entry)
            elif isinstance(entry, EvaluationEntry) and entry.purpose is Purpose.SEARCH:
                self._outcomes[entry.number] = entry.evaluation.status.value

    def _outcome(self, entry: OutcomeEntry) -> None:
        for exchange in entry.outcome.exchanges:
            requests, dollars = self._bills.get(exchange.model, (0, 0.0))
            self._bills[exchange.model] = (requests + 1, dollars + exchange.usage.dollars)
            failed, refused = exchange.stop_reason == "error", exchange.stop_reason == REFUSAL
            if failed or refused:
                had = self._troubles.get(exchange.model, Trouble())
                last = entry.outcome.reason if isinstance(entry.outcome, NoProposal) else had.last
                self._troubles[exchange.model] = Trouble(had.failed + failed, had.refused + refused, last)
        if entry.variant is None:
            self._outcomes[entry.number] = "no_proposal"
        elif entry.variant.variant_id in self._known:
            self._outcomes[entry.number] = "repeated"
        else:
            self._known.add(entry.variant.variant_id)

    def _counts(self) -> dict[str, Counter[str]]:
        counts: dict[str, Counter[str]] = {}
        for number, outcome in self._outcomes.items():
            counts.setdefault(self._tasks[number], Counter())[outcome] += 1
        return counts


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
        parts += [traps_text(status.abandoned), traps_table(status.abandoned)]
    if status.bills:
        bills = (f"{model}: {requests} requests, ${dollars:.2f}" for model, (requests, dollars) in sorted(status.bills.items()))
        parts.append(Text("models: " + "; ".join(bills)))
    for model, had in sorted(status.troubles.items()):
        parts.append(Text(f"{model}: {had.failed} requests failed, {had.refused} refused; the last: {_one_line(had.last, 300)}"))
    cut_off = _after_a_death(status.events)
    for event in _shown(status.events):
        where = " ".join(part for part in (event.task, event.lineage) if part)
        died = "; the one before was cut off: its driver, engine or machine died" if id(event) in cut_off else ""
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


def _islands(rankings: Mapping[str, Sequence[Ranked]], events: Sequence[Event]) -> tuple[IslandStatus, ...]:
    passed: Counter[tuple[str, int]] = Counter()
    best: dict[tuple[str, int], float] = {}
    for task, rows in rankings.items():
        for row in rows:
            place = (task, row.request.island)
            passed[place] += 1
            best[place] = max(best.get(place, 0.0), (row.verify or row.search).fitness)
    kinds = Counter(((event.task, event.island), event.kind) for event in events if event.task and event.island >= 0)
    places = sorted(set(passed) | {place for place, _ in kinds})
    return tuple(
        IslandStatus(
            *place,
            passed[place],
            best.get(place, 0.0),
            kinds[place, EventKind.STALLED],
            kinds[place, EventKind.TRAPPED],
            kinds[place, EventKind.MIGRATION],
        )
        for place in places
    )


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


def _trusts(rows: Sequence[Ranked]) -> dict[TrustLevel, int]:
    """By level, the most trusted first."""
    found = Counter((row.verify or row.search).trust for row in rows)
    return {level: found[level] for level in TrustLevel if found[level]}


def _shown(events: Sequence[Event]) -> list[Event]:
    """All devices in quarantine, what happened to the cluster and to sessions last, and the last events whatever they are."""
    events = [event for event in events if event.kind is not EventKind.BATCH]  # of use to the next process alone
    earlier, last = events[:-SHOWN_EVENTS], events[-SHOWN_EVENTS:]
    happened = [event for event in earlier if event.kind in (EventKind.CLUSTER, EventKind.WORKER_LOST, *_ENDS)][-SHOWN_FAULTS:]
    kept = {id(event) for event in happened}
    return [*(event for event in earlier if event.kind is EventKind.QUARANTINED or id(event) in kept), *last]


def _after_a_death(events: Sequence[Event]) -> set[int]:
    """Of the beginnings of sessions, those before which the session before has no end."""
    found: set[int] = set()
    ended = False
    for event in events:
        if event.kind is EventKind.RESUMED and not ended:
            found.add(id(event))
        if event.kind in _ENDS:
            ended = event.kind is not EventKind.RESUMED
    return found


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
