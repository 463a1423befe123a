"""Checks the journal of a population store for lost, double and contradictory records; knows no engine and no cluster."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from evo.records import Event, Request, Status, Variant
from population_store.base import EvaluationEntry, OutcomeEntry, PopulationStore, Purpose


@dataclass
class Journal:
    """Everything a store holds, in order of numbers."""

    requests: dict[int, Request] = field(default_factory=dict)
    outcomes: dict[int, OutcomeEntry] = field(default_factory=dict)
    evaluations: dict[tuple[int, Purpose], EvaluationEntry] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def variants(self) -> dict[str, Variant]:
        return {entry.variant.variant_id: entry.variant for entry in self.outcomes.values() if entry.variant is not None}

    @property
    def searched(self) -> list[EvaluationEntry]:
        return [entry for (_, purpose), entry in self.evaluations.items() if purpose is Purpose.SEARCH]


def read_journal(store: PopulationStore) -> Journal:
    """Reads a journal, noting every entry that contradicts one before it."""
    journal = Journal()
    last = 0
    for sequence, entry in store.journal():
        if sequence <= last:
            journal.problems.append(f"sequence {sequence} after {last}")
        last = sequence
        match entry:
            case Request():
                _add_request(journal, entry)
            case OutcomeEntry():
                _add_outcome(journal, entry)
            case EvaluationEntry():
                _add_evaluation(journal, entry)
            case Event():
                journal.events.append(entry)
    return journal


def check_journal(store: PopulationStore, *, finished: bool = False) -> list[str]:
    """What is wrong with a store, one line each; empty for a sound one.

    Args:
        store: To be read.
        finished: The run came to its end, so nothing may be pending.
    """
    journal = read_journal(store)
    problems = journal.problems
    if sorted(journal.requests) != list(range(len(journal.requests))):
        problems.append("request numbers have gaps")
    repeated = Counter(entry.evaluation.variant_id for entry in journal.searched)
    problems += [f"variant {variant} searched {count} times" for variant, count in repeated.items() if count > 1]
    problems += _plans(journal)
    spent = store.spent
    if spent.evaluations != len(journal.searched):
        problems.append(f"spent says {spent.evaluations} evaluations, the journal has {len(journal.searched)}")
    dollars = sum(exchange.usage.dollars for entry in journal.outcomes.values() for exchange in entry.outcome.exchanges)
    if abs(spent.dollars - dollars) > 1e-6:
        problems.append(f"spent says ${spent.dollars}, the exchanges cost ${dollars}")
    problems += [f"variant {variant} cannot be read back" for variant in journal.variants if store.variant(variant) is None]
    if finished:
        problems += [f"request {number} has no outcome" for number in journal.requests if number not in journal.outcomes]
        judged = {entry.evaluation.variant_id for entry in journal.searched}
        problems += [f"variant {variant} was never evaluated" for variant in journal.variants if variant not in judged]
    return problems


def _add_request(journal: Journal, request: Request) -> None:
    if request.number in journal.requests:
        journal.problems.append(f"request {request.number} twice")
    unknown = [parent for parent in request.parents if parent not in journal.variants]
    if unknown:
        journal.problems.append(f"request {request.number} has unknown parents {unknown}")
    journal.requests[request.number] = request


def _add_outcome(journal: Journal, entry: OutcomeEntry) -> None:
    if entry.number not in journal.requests:
        journal.problems.append(f"outcome of unknown request {entry.number}")
    if entry.number in journal.outcomes:
        journal.problems.append(f"two outcomes of request {entry.number}")
    journal.outcomes[entry.number] = entry


def _add_evaluation(journal: Journal, entry: EvaluationEntry) -> None:
    outcome = journal.outcomes.get(entry.number)
    if outcome is None or outcome.variant is None:
        journal.problems.append(f"evaluation of request {entry.number}, which has no variant")
    elif outcome.variant.variant_id != entry.evaluation.variant_id:
        journal.problems.append(f"evaluation of request {entry.number} is of another variant")
    if (entry.number, entry.purpose) in journal.evaluations:
        journal.problems.append(f"two {entry.purpose} evaluations of request {entry.number}")
    if entry.purpose is Purpose.VERIFY and (entry.number, Purpose.SEARCH) not in journal.evaluations:
        journal.problems.append(f"request {entry.number} verified before it was searched")
    journal.evaluations[entry.number, entry.purpose] = entry


def _plans(journal: Journal) -> list[str]:
    """One launch plan is measured once per device and task, and a duplicate names a variant that exists."""
    measured: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    problems = []
    for entry in journal.searched:
        evaluation, task = entry.evaluation, journal.requests[entry.number].task
        if evaluation.status is Status.PASSED and evaluation.plan_hash:
            measured[task, evaluation.device, evaluation.plan_hash].append(evaluation.variant_id)
        if evaluation.duplicate_of is not None and evaluation.duplicate_of not in journal.variants:
            problems.append(f"variant {evaluation.variant_id} duplicates {evaluation.duplicate_of}, which is unknown")
    problems += [f"plan {plan} measured for {ids}" for (_, _, plan), ids in measured.items() if len(ids) > 1]
    return problems
