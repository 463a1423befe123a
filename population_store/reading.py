"""Queries over a store: each runs in one read transaction of the caller and gives records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Select, Table, bindparam, func, select

from evo.records import Event, Spent, Status, Variant
from population_store import rows, schema
from population_store.base import Entry, EvaluationEntry, Kept, OutcomeEntry, Purpose, Ranked, RunHeader

_CHUNK = 1000


def read_header(connection: Connection) -> RunHeader:
    """The run's header."""
    return rows.header_of(connection.execute(select(schema.run)).mappings().one())


def read_spent(connection: Connection) -> Spent:
    """The budget used as of the last commit."""
    return rows.spent_of(connection.execute(select(schema.spent)).mappings().one())


def read_variant(connection: Connection, variant_id: str) -> Variant | None:
    """The variant of that id, None where there is none."""
    table = schema.variants
    row = connection.execute(select(table.c.task, table.c.source).where(table.c.variant_id == variant_id)).one_or_none()
    return None if row is None else Variant(row.task, row.source)


def read_modules(connection: Connection, task: str, after: int, size: int) -> list[tuple[int, Variant]]:
    """Up to `size` variants of a task that became known after an entry, each with the entry that made it known."""
    variants, outcomes = schema.variants, schema.outcomes
    every = outcomes.alias()
    first = select(func.min(every.c.seq)).where(every.c.variant_id == outcomes.c.variant_id).scalar_subquery()
    query = (
        select(outcomes.c.seq, variants.c.task, variants.c.source)
        .join(variants, variants.c.variant_id == outcomes.c.variant_id)
        .where(outcomes.c.seq > after, variants.c.task == task, outcomes.c.seq == first)
        .order_by(outcomes.c.seq)
        .limit(size)
    )
    return [(row.seq, Variant(row.task, row.source)) for row in connection.execute(query)]


def known_query() -> Select[Any]:
    """Of ``variant_id`` and ``up_to``: a row if an outcome up to that entry led to the variant."""
    table = schema.outcomes
    return select(table.c.seq).where(table.c.variant_id == bindparam("variant_id"), table.c.seq <= bindparam("up_to")).limit(1)


def plan_owner_query() -> Select[Any]:
    """Of ``plan_hash`` and ``up_to``: task, device and variant of each search evaluation of a plan, but of duplicates, in order."""
    table = schema.evaluations
    return (
        select(table.c.task, table.c.device, table.c.variant_id)
        .where(
            table.c.plan_hash == bindparam("plan_hash"),
            table.c.seq <= bindparam("up_to"),
            table.c.purpose.concat("") == Purpose.SEARCH.value,  # so that no index but that of plans is used
            table.c.status.concat("") != Status.DUPLICATE.value,
        )
        .order_by(table.c.seq)
    )


def read_kept(connection: Connection, name: str) -> Kept | None:
    """See `PopulationStore.kept`."""
    table = schema.snapshots
    row = connection.execute(select(table).where(table.c.name == name)).one_or_none()
    return None if row is None else Kept(row.seq, row.key, row.text)


def read_counts(connection: Connection) -> dict[str, dict[str, int]]:
    """Task → state → how many requests."""
    table = schema.requests
    counts: dict[str, dict[str, int]] = {}
    query = select(table.c.task, table.c.state, func.count()).group_by(table.c.task, table.c.state)
    for task, state, count in connection.execute(query.order_by(table.c.task, table.c.state)):
        counts.setdefault(task, {})[state] = count
    return counts


def read_events(connection: Connection) -> tuple[Event, ...]:
    """All events, in order."""
    query = select(schema.events).order_by(schema.events.c.seq)
    return tuple(rows.event_of(row) for row in connection.execute(query).mappings())


def read_chunk(connection: Connection, after: int, size: int) -> list[tuple[int, Entry]]:
    """Up to `size` journal entries above `after`, in order; fewer only at the end."""
    last = min(after + size, connection.execute(select(schema.spent.c.last_seq)).scalar_one())
    sequence = range(after + 1, last + 1)
    if not sequence:
        return []
    entries: dict[int, Entry] = {row["seq"]: rows.request_of(row) for row in _between(connection, schema.requests, sequence)}
    entries |= {row["seq"]: rows.event_of(row) for row in _between(connection, schema.events, sequence)}
    entries |= {row["seq"]: rows.tried_of(row) for row in _between(connection, schema.tried, sequence)}
    entries |= _outcomes(connection, _between(connection, schema.outcomes, sequence))
    entries |= _evaluations(connection, _between(connection, schema.evaluations, sequence))
    return sorted(entries.items())


def read_ranking(connection: Connection, task: str, limit: int | None) -> tuple[Ranked, ...]:
    """Rows of `PopulationStore.ranking`; equal fitness: the one evaluated first is first."""
    table = schema.standings
    query = select(table.c.search_seq, table.c.verify_seq).where(table.c.task == task, table.c.fitness.is_not(None))
    return _ranked(connection, query.order_by(table.c.fitness.desc(), table.c.search_seq).limit(limit))


def read_verified(connection: Connection, task: str) -> tuple[Ranked, ...]:
    """Rows of `PopulationStore.verified`."""
    table, verdicts = schema.standings, schema.evaluations
    ids = select(verdicts.c.variant_id).where(verdicts.c.task == task, verdicts.c.purpose == Purpose.VERIFY.value)
    query = select(table.c.search_seq, table.c.verify_seq).where(
        table.c.variant_id.in_(ids), table.c.verify_seq.is_not(None), table.c.search_fitness > 0
    )
    return _ranked(connection, query.order_by(table.c.search_seq))


def _ranked(connection: Connection, query: Select[Any]) -> tuple[Ranked, ...]:
    """Of ``search_seq`` and ``verify_seq``, in that order."""
    order = connection.execute(query).all()
    seqs = [seq for row in order for seq in row if seq is not None]
    evaluations = _evaluations(connection, _at(connection, schema.evaluations, "seq", seqs))
    numbers = [evaluations[row.search_seq].number for row in order]
    requests = {row["number"]: rows.request_of(row) for row in _at(connection, schema.requests, "number", numbers)}
    # Exchanges are left out: a ranking shows the strategy, and prompts are the largest texts of a store.
    found = list(_at(connection, schema.outcomes, "number", numbers))
    variants = _variants(connection, found)
    outcomes = {row["number"]: row for row in found}
    ranking = []
    for search_seq, verify_seq in order:
        search = evaluations[search_seq]
        outcome = outcomes[search.number]
        verify = None if verify_seq is None else evaluations[verify_seq].evaluation
        variant = variants[outcome["variant_id"]]
        ranking.append(Ranked(search.number, requests[search.number], variant, outcome["text"], search.evaluation, verify))
    return tuple(ranking)


def _outcomes(connection: Connection, found: Iterable[Any]) -> dict[int, OutcomeEntry]:
    outcomes = list(found)
    variants = _variants(connection, outcomes)
    exchanges = _grouped(connection, schema.exchanges, [row["seq"] for row in outcomes])
    return {row["seq"]: rows.outcome_of(row, variants.get(row["variant_id"]), exchanges[row["seq"]]) for row in outcomes}


def _evaluations(connection: Connection, found: Iterable[Any]) -> dict[int, EvaluationEntry]:
    evaluations = list(found)
    trials = _grouped(connection, schema.trials, [row["seq"] for row in evaluations])
    return {row["seq"]: rows.evaluation_of(row, trials[row["seq"]]) for row in evaluations}


def _variants(connection: Connection, outcomes: Iterable[Any]) -> dict[str, Variant]:
    ids = sorted({row["variant_id"] for row in outcomes} - {None})
    found = _at(connection, schema.variants, "variant_id", ids)
    return {row["variant_id"]: Variant(row["task"], row["source"]) for row in found}


def _grouped(connection: Connection, table: Table, seqs: Sequence[int]) -> defaultdict[int, list[Any]]:
    """Rows of a child table by the entry they belong to, in their order."""
    groups: defaultdict[int, list[Any]] = defaultdict(list)
    for row in _at(connection, table, "seq", seqs):
        groups[row["seq"]].append(row)
    for group in groups.values():
        group.sort(key=lambda row: int(row["position"]))
    return groups


def _between(connection: Connection, table: Table, sequence: range) -> Iterable[Any]:
    return connection.execute(select(table).where(table.c.seq.between(sequence[0], sequence[-1]))).mappings()


def _at(connection: Connection, table: Table, column: str, values: Sequence[Any]) -> Iterable[Any]:
    for start in range(0, len(values), _CHUNK):
        chosen = table.c[column].in_(values[start : start + _CHUNK])
        yield from connection.execute(select(table).where(chosen)).mappings()
