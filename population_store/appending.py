"""Appending entries inside one transaction: what is new, what is already there, what refers to nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sqlalchemy import Column, Connection, Select, Table, bindparam, insert, select, update

from evo.records import Event, Request, Spent, Status
from population_store import rows, schema
from population_store.base import Entry, EvaluationEntry, OutcomeEntry, Purpose, TrialEntry

PENDING = "pending"
NO_PROPOSAL = "no_proposal"

_CHUNK = 1000
"""Values in one IN list; SQLite of old allows 999 and a few more, PostgreSQL 65535."""


def append(connection: Connection, entries: Sequence[Entry], spent: Spent) -> tuple[bool, ...]:
    """Appends to the journal in the caller's transaction.

    Returns:
        Per entry, whether it was new.

    Raises:
        ValueError: An entry refers to a request or a variant that is not recorded; the caller rolls back.
    """
    batch = _Batch(connection, entries)
    new = tuple(batch.add(entry) for entry in entries)
    batch.write(spent)
    return new


class _Batch:
    """The rows of one call, and what it has to know of the store to tell new from old."""

    def __init__(self, connection: Connection, entries: Sequence[Entry]) -> None:
        self._connection = connection
        self._seq: int = connection.execute(select(schema.spent.c.last_seq)).scalar_one()
        numbers = {entry.number for entry in entries if not isinstance(entry, Event)}
        table = schema.requests
        query = select(table.c.number, table.c.task)
        self._requests: dict[int, str] = {row.number: row.task for row in self._known(query, table.c.number, numbers)}
        table = schema.outcomes
        query = select(table.c.number, table.c.variant_id)
        self._outcomes = {row.number: row.variant_id for row in self._known(query, table.c.number, numbers)}
        table = schema.evaluations
        query = select(table.c.number, table.c.purpose)
        self._evaluations = {(row.number, row.purpose) for row in self._known(query, table.c.number, numbers)}
        table = schema.tried
        query = select(table.c.number, table.c.position)
        tuned = {entry.number for entry in entries if isinstance(entry, TrialEntry)}
        self._tried = {(row.number, row.position) for row in self._known(query, table.c.number, tuned)}
        ids = {entry.variant.variant_id for entry in entries if isinstance(entry, OutcomeEntry) and entry.variant is not None}
        column = schema.variants.c.variant_id
        self._variants = {row.variant_id for row in self._known(select(column), column, ids)}
        self._inserts: dict[Table, list[rows.Row]] = {}
        self._states: dict[int, str] = {}
        self._verdicts: list[tuple[int, str, EvaluationEntry]] = []

    def _known(self, query: Select[Any], column: Column[Any], values: Iterable[Any]) -> Iterable[Any]:
        ordered = sorted(values)
        for start in range(0, len(ordered), _CHUNK):
            yield from self._connection.execute(query.where(column.in_(ordered[start : start + _CHUNK])))

    def add(self, entry: Entry) -> bool:
        """Prepares the rows of an entry; False where it is already there."""
        adders: dict[type[Any], Callable[[Any], bool]] = {
            Request: self._add_request,
            OutcomeEntry: self._add_outcome,
            EvaluationEntry: self._add_evaluation,
            TrialEntry: self._add_tried,
            Event: self._add_event,
        }
        return adders[type(entry)](entry)

    def _add_request(self, request: Request) -> bool:
        if request.number in self._requests:
            return False
        self._requests[request.number] = request.task
        self._insert(schema.requests, rows.request_row(self._next(), request, PENDING))
        return True

    def _add_outcome(self, entry: OutcomeEntry) -> bool:
        if entry.number in self._outcomes:
            return False
        task, variant = self._task_of(entry.number), entry.variant
        if variant is None:
            self._states[entry.number] = NO_PROPOSAL
        elif variant.task != task:
            raise ValueError(f"outcome of request {entry.number}: a variant of task {variant.task!r}, the request's is {task!r}")
        elif variant.variant_id not in self._variants:
            self._variants.add(variant.variant_id)
            self._insert(schema.variants, rows.variant_row(variant))
        self._outcomes[entry.number] = None if variant is None else variant.variant_id
        seq = self._next()
        self._insert(schema.outcomes, rows.outcome_row(seq, entry))
        self._insert(schema.exchanges, *rows.exchange_rows(seq, entry.outcome.exchanges))
        return True

    def _add_evaluation(self, entry: EvaluationEntry) -> bool:
        key = (entry.number, entry.purpose.value)
        if key in self._evaluations:
            return False
        task, expected = self._task_of(entry.number), self._outcomes.get(entry.number)
        if entry.evaluation.variant_id != expected:
            given = entry.evaluation.variant_id
            raise ValueError(f"evaluation for request {entry.number}: of variant {given}, the request's outcome is {expected}")
        self._evaluations.add(key)
        seq = self._next()
        self._insert(schema.evaluations, rows.evaluation_row(seq, entry, task))
        self._insert(schema.trials, *rows.trial_rows(seq, entry.evaluation.trials))
        self._verdicts.append((seq, task, entry))
        if entry.purpose is Purpose.SEARCH:
            self._states[entry.number] = entry.evaluation.status.value
        return True

    def _add_tried(self, entry: TrialEntry) -> bool:
        key = (entry.number, entry.position)
        if key in self._tried:
            return False
        if self._outcomes.get(entry.number) is None:
            raise ValueError(f"trials for request {entry.number}, which has no recorded variant")
        self._tried.add(key)
        self._insert(schema.tried, rows.tried_row(self._next(), entry))
        return True

    def _add_event(self, event: Event) -> bool:
        self._insert(schema.events, rows.event_row(self._next(), event))
        return True

    def _task_of(self, number: int) -> str:
        try:
            return self._requests[number]
        except KeyError:
            raise ValueError(f"an entry for request {number}, which was never recorded") from None

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def _insert(self, table: Table, *new: rows.Row) -> None:
        self._inserts.setdefault(table, []).extend(new)

    def write(self, spent: Spent) -> None:
        """Executes everything prepared, a table at a time, referred-to tables first."""
        for table in schema.metadata.sorted_tables:
            if self._inserts.get(table):
                self._connection.execute(insert(table), self._inserts[table])
        if self._states:
            by_number = schema.requests.c.number == bindparam("of_number")
            states = [{"of_number": number, "new_state": state} for number, state in self._states.items()]
            self._connection.execute(update(schema.requests).where(by_number).values(state=bindparam("new_state")), states)
        self._write_standings()
        self._connection.execute(update(schema.spent).values(rows.spent_row(spent, self._seq)))

    def _write_standings(self) -> None:
        table = schema.standings
        ids = {entry.evaluation.variant_id for _, _, entry in self._verdicts}
        old = {row["variant_id"]: dict(row) for row in self._mappings(select(table), table.c.variant_id, ids)}
        standings = dict(old)
        for seq, task, entry in self._verdicts:
            standing = standings.get(entry.evaluation.variant_id, _no_standing(entry.evaluation.variant_id, task))
            standings[entry.evaluation.variant_id] = _after(standing, seq, entry)
        fresh = [row for key, row in standings.items() if key not in old]
        if fresh:
            self._connection.execute(insert(table), fresh)
        changed = [{"of_variant": key, **row} for key, row in standings.items() if key in old and row != old[key]]
        if changed:
            names = ("search_seq", "search_fitness", "verify_seq", "verify_fitness", "fitness")
            values: dict[str, Any] = {name: bindparam(name) for name in names}
            rewritten = [{name: row[name] for name in ("of_variant", *names)} for row in changed]
            self._connection.execute(update(table).where(table.c.variant_id == bindparam("of_variant")).values(values), rewritten)

    def _mappings(self, query: Select[Any], column: Column[Any], values: Iterable[Any]) -> Iterable[Any]:
        return (row._mapping for row in self._known(query, column, values))


def _no_standing(variant_id: str, task: str) -> rows.Row:
    unknown = {"search_seq": None, "search_fitness": 0.0, "verify_seq": None, "verify_fitness": None, "fitness": None}
    return {"variant_id": variant_id, "task": task, **unknown}


def _after(standing: rows.Row, seq: int, entry: EvaluationEntry) -> rows.Row:
    """The standing after one more verdict. A DUPLICATE says nothing new: the variant was judged under another request."""
    if entry.evaluation.status is Status.DUPLICATE:
        return standing
    prefix = entry.purpose.value
    standing = {**standing, f"{prefix}_seq": seq, f"{prefix}_fitness": entry.evaluation.fitness}
    searched, verified = standing["search_fitness"], standing["verify_fitness"]
    ranked = searched > 0 and verified != 0  # a fitness is positive if and only if the evaluation passed
    return {**standing, "fitness": (searched if verified is None else verified) if ranked else None}
