"""Records to rows and back, exactly: what has a column of its own is taken out of the JSON and put back on reading."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import RowMapping

from evo.records import Evaluation, Event, Exchange, NoProposal, Proposal, Request, Spent, Trial, Variant
from population_store.base import EvaluationEntry, OutcomeEntry, Purpose, RunHeader, TrialEntry

Row = dict[str, Any]
"""Column name → value, for an insert."""

_EXCHANGE_COLUMNS = ("model", "prompt_hash", "template_hash", "stop_reason")
_EVALUATION_COLUMNS = ("variant_id", "status", "stage", "device", "plan_hash", "fitness")
_TRIAL_COLUMNS = ("case", "status", "latency_us")
_REQUEST_COLUMNS = ("number", "task", "island", "lineage", "operator", "parents", "model")
_EVENT_COLUMNS = ("kind", "task", "island", "lineage", "variant_id", "reason")


def header_row(header: RunHeader) -> Row:
    """The only row of `run`."""
    return {"id": 1, **header.to_json()}


def header_of(row: RowMapping) -> RunHeader:
    """Inverse of `header_row`."""
    return RunHeader.from_json({key: value for key, value in row.items() if key != "id"})


def spent_row(spent: Spent, last_seq: int) -> Row:
    """The only row of `spent`."""
    return {"id": 1, "last_seq": last_seq, **spent.to_json()}


def spent_of(row: RowMapping) -> Spent:
    """Inverse of `spent_row`."""
    return Spent.from_json({key: value for key, value in row.items() if key not in ("id", "last_seq")})


def request_row(seq: int, request: Request, state: str) -> Row:
    """A row of `requests`."""
    return {"seq": seq, "state": state, **request.to_json()}


def request_of(row: RowMapping) -> Request:
    """Inverse of `request_row`."""
    return Request.from_json(_pick(row, _REQUEST_COLUMNS))


def event_row(seq: int, event: Event) -> Row:
    """A row of `events`."""
    return {"seq": seq, **event.to_json()}


def event_of(row: RowMapping) -> Event:
    """Inverse of `event_row`."""
    return Event.from_json(_pick(row, _EVENT_COLUMNS))


def outcome_row(seq: int, entry: OutcomeEntry) -> Row:
    """A row of `outcomes`; the module is stored once, with its variant, unless the two differ."""
    outcome, variant = entry.outcome, entry.variant
    row = {"seq": seq, "number": entry.number, "variant_id": None, "failed": None, "source": None}
    if isinstance(outcome, NoProposal):
        return {**row, "failed": outcome.failed, "text": outcome.reason}
    assert variant is not None
    own_source = None if outcome.source == variant.source else outcome.source
    return {**row, "variant_id": variant.variant_id, "text": outcome.strategy, "source": own_source}


def outcome_of(row: RowMapping, variant: Variant | None, exchanges: Iterable[RowMapping]) -> OutcomeEntry:
    """Inverse of `outcome_row`, given its variant and the rows of its exchanges."""
    exchanged = tuple(_exchange_of(exchange) for exchange in exchanges)
    if variant is None:
        return OutcomeEntry(row["number"], NoProposal(row["text"], row["failed"], exchanged), None)
    source = variant.source if row["source"] is None else row["source"]
    return OutcomeEntry(row["number"], Proposal(source, row["text"], exchanged), variant)


def variant_row(variant: Variant) -> Row:
    """A row of `variants`."""
    return {"variant_id": variant.variant_id, **variant.to_json()}


def exchange_rows(seq: int, exchanges: Iterable[Exchange]) -> list[Row]:
    """Rows of `exchanges`, in order."""
    rows = []
    for position, exchange in enumerate(exchanges):
        record = exchange.to_json()
        row = {"seq": seq, "position": position, "dollars": record["usage"].pop("dollars"), **_take(record, _EXCHANGE_COLUMNS)}
        rows.append({**row, "record": record})
    return rows


def _exchange_of(row: RowMapping) -> Exchange:
    """Inverse of a row of `exchange_rows`."""
    record = row["record"]
    usage = {**record["usage"], "dollars": row["dollars"]}
    return Exchange.from_json({**record, **_pick(row, _EXCHANGE_COLUMNS), "usage": usage})


def evaluation_row(seq: int, entry: EvaluationEntry, task: str) -> Row:
    """A row of `evaluations`; its trials have their own table."""
    record = entry.evaluation.to_json()
    del record["trials"]
    columns = _take(record, _EVALUATION_COLUMNS)
    return {"seq": seq, "number": entry.number, "purpose": entry.purpose.value, "task": task, **columns, "record": record}


def evaluation_of(row: RowMapping, trials: Iterable[RowMapping]) -> EvaluationEntry:
    """Inverse of `evaluation_row`, given the rows of its trials."""
    tried = [{**trial["record"], **_pick(trial, _TRIAL_COLUMNS)} for trial in trials]
    evaluation = Evaluation.from_json({**row["record"], **_pick(row, _EVALUATION_COLUMNS), "trials": tried})
    return EvaluationEntry(row["number"], Purpose(row["purpose"]), evaluation)


def trial_rows(seq: int, trials: Iterable[Trial]) -> list[Row]:
    """Rows of `trials`, in order."""
    rows = []
    for position, trial in enumerate(trials):
        record = trial.to_json()
        rows.append({"seq": seq, "position": position, **_take(record, _TRIAL_COLUMNS), "record": record})
    return rows


def tried_row(seq: int, entry: TrialEntry) -> Row:
    """A row of `tried`."""
    record = [trial.to_json() for trial in entry.trials]
    return {"seq": seq, "number": entry.number, "position": entry.position, "device": entry.device, "record": record}


def tried_of(row: RowMapping) -> TrialEntry:
    """Inverse of `tried_row`."""
    return TrialEntry(row["number"], row["position"], row["device"], tuple(map(Trial.from_json, row["record"])))


def _take(record: dict[str, Any], names: tuple[str, ...]) -> Row:
    return {name: record.pop(name) for name in names}


def _pick(row: RowMapping, names: tuple[str, ...]) -> Row:
    return {name: row[name] for name in names}
