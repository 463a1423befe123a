"""Where a variant comes from: the requests that led from a starting kernel to it, read once from the journal."""

from __future__ import annotations

from dataclasses import dataclass

from evo.records import Proposal, Record, Request, Status
from population_store.base import EvaluationEntry, OutcomeEntry, PopulationStore, Purpose


@dataclass(frozen=True)
class Ancestor(Record):
    """One step of a descent.

    Attributes:
        number, operator, island, lineage, parents: Of the request.
        variant_id: What it produced.
        strategy: In the operator's words.
        fitness: Of the search evaluation; None where it did not pass (a parent may be known from another request).
    """

    number: int
    operator: str
    island: int
    lineage: str
    parents: tuple[str, ...]
    variant_id: str
    strategy: str
    fitness: float | None


class Ancestry:
    """Answers from one reading of a store's journal."""

    def __init__(self, store: PopulationStore) -> None:
        self._requests: dict[int, Request] = {}
        self._outcomes: dict[int, tuple[str, str]] = {}
        self._makers: dict[str, list[int]] = {}
        self._fitness: dict[str, float] = {}
        for _, entry in store.journal():
            if isinstance(entry, Request):
                self._requests[entry.number] = entry
            elif isinstance(entry, OutcomeEntry):
                self._remember(entry)
            elif isinstance(entry, EvaluationEntry) and _passed_search(entry):
                self._fitness[entry.evaluation.variant_id] = entry.evaluation.fitness

    def descent(self, number: int) -> tuple[Ancestor, ...]:
        """From the starting kernel to the variant of a request, along first parents."""
        steps: list[Ancestor] = []
        while True:
            request, (variant_id, strategy) = self._requests[number], self._outcomes[number]
            steps.append(
                Ancestor(
                    number, request.operator, request.island, request.lineage, request.parents, variant_id, strategy,
                    self._fitness.get(variant_id),
                )
            )  # fmt: skip
            # A parent was there before its child was asked for, so numbers fall and this ends.
            makers = [made for made in self._makers.get(request.parents[0], ()) if made < number] if request.parents else []
            if not makers:
                return tuple(reversed(steps))
            number = makers[0]

    def _remember(self, entry: OutcomeEntry) -> None:
        if isinstance(entry.outcome, Proposal) and entry.variant is not None:
            self._outcomes[entry.number] = (entry.variant.variant_id, entry.outcome.strategy)
            self._makers.setdefault(entry.variant.variant_id, []).append(entry.number)


def _passed_search(entry: EvaluationEntry) -> bool:
    return entry.purpose is Purpose.SEARCH and entry.evaluation.status is Status.PASSED
