"""A store that forgets at the end of the test: the answers that a real one must give, found the plainest way."""

from __future__ import annotations

from evo.records import Evaluation, Event, Request, Status
from population_store.base import Entry, EvaluationEntry, OutcomeEntry, Purpose, TrialEntry


class Model:
    """What a store must answer, kept the plainest way."""

    def __init__(self) -> None:
        self.journal: list[Entry] = []
        self._seen: set[tuple[str, int]] = set()

    def add(self, entry: Entry) -> bool:
        """Whether the entry is new."""
        if not isinstance(entry, Event):
            kind = entry.purpose.value if isinstance(entry, EvaluationEntry) else type(entry).__name__
            kind += f" {entry.position}" if isinstance(entry, TrialEntry) else ""
            if (kind, entry.number) in self._seen:
                return False
            self._seen.add((kind, entry.number))
        self.journal.append(entry)
        return True

    def counts(self) -> dict[str, dict[str, int]]:
        """As `PopulationStore.counts`."""
        tasks = {entry.number: entry.task for entry in self.journal if isinstance(entry, Request)}
        states = dict.fromkeys(tasks, "pending")
        for entry in self.journal:
            if isinstance(entry, OutcomeEntry) and entry.variant is None:
                states[entry.number] = "no_proposal"
            if isinstance(entry, EvaluationEntry) and entry.purpose is Purpose.SEARCH:
                states[entry.number] = entry.evaluation.status.value
        counts: dict[str, dict[str, int]] = {}
        for number, state in states.items():
            row = counts.setdefault(tasks[number], {})
            row[state] = row.get(state, 0) + 1
        return counts

    def ranking(self, task: str) -> list[tuple[str, Evaluation, Evaluation | None]]:
        """As `PopulationStore.ranking`: variant id and newest evaluations."""
        tasks = {entry.number: entry.task for entry in self.journal if isinstance(entry, Request)}
        newest: dict[Purpose, dict[str, Evaluation]] = {purpose: {} for purpose in Purpose}
        for entry in self.journal:
            if (
                isinstance(entry, EvaluationEntry)
                and entry.evaluation.status is not Status.DUPLICATE
                and tasks[entry.number] == task
            ):
                of_purpose = newest[entry.purpose]
                of_purpose.pop(entry.evaluation.variant_id, None)  # so that the order is that of the newest
                of_purpose[entry.evaluation.variant_id] = entry.evaluation
        rows = [(key, search, newest[Purpose.VERIFY].get(key)) for key, search in newest[Purpose.SEARCH].items()]
        ranked = [row for row in rows if row[1].fitness > 0 and (row[2] is None or row[2].fitness > 0)]
        return sorted(ranked, key=lambda row: -(row[2] or row[1]).fitness)
