"""What is recorded of a proposal: its variant, the known variant that it is in other words, or why it is none."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from evo.records import NoProposal, Proposal, Variant
from evo.search.near import Near
from evo.search.novelty import Novelty
from evo.search.state import TaskState
from population_store.base import OutcomeEntry, PopulationStore


class Outcomes:
    """Makes the entries of outcomes.

    Args:
        states: Of the run's tasks.
        store: Of the run.
    """

    def __init__(self, states: Mapping[str, TaskState], store: PopulationStore) -> None:
        self._novelty = {name: Novelty(name, store) for name in states}
        self._near = {name: Near(name, store, state.settings.near_duplicate) for name, state in states.items()}

    def prepare(self, told: Iterable[tuple[TaskState | None, Proposal | NoProposal]]) -> None:
        """To be called before the first of these outcomes is applied, while nothing is applied that the store lacks."""
        for state, outcome in told:
            if state is not None and outcome.exchanges:
                self._novelty[state.name].prepare()
                self._near[state.name].prepare()

    def passed(self, variant: Variant) -> None:
        """To be called with every variant that passed."""
        self._near[variant.task].passed(variant)

    def entry(self, state: TaskState, number: int, outcome: Proposal | NoProposal) -> OutcomeEntry:
        """The entry to record, made when all before it are applied.

        A model's module that differs from a known variant in layout, comments or names of local variables only is recorded as that
        variant, so that nothing is evaluated twice; what the model wrote stands in the exchange. Rules give modules whose plans
        are compared at evaluation anyway. One that is nearly a variant that passed is recorded as a failed proposal: what differs is
        worth no evaluation.
        """
        if isinstance(outcome, NoProposal):
            return OutcomeEntry(number, outcome, None)
        if not _is_unicode(outcome.source):
            # A model's reply may hold half a surrogate pair; such a module could be neither identified nor written to a file.
            return OutcomeEntry(number, NoProposal("the module is not valid Unicode text", True, outcome.exchanges), None)
        novelty = self._novelty[state.name]
        known = novelty.twin(outcome.source) if outcome.exchanges else None
        if known is not None:
            twin = state.archive.variant(known)
            return OutcomeEntry(number, dataclasses.replace(outcome, source=twin.source), twin)
        near = self._near[state.name].of(outcome.source) if outcome.exchanges else None
        if near is not None:
            reason = f"not evaluated: {near[1]:.1%} of it is variant {near[0]}, which passed"
            return OutcomeEntry(number, NoProposal(reason, True, outcome.exchanges), None)
        variant = Variant(state.name, outcome.source)
        novelty.see(variant)
        return OutcomeEntry(number, outcome, variant)


def _is_unicode(text: str) -> bool:
    """Whether a text can be written to a file."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
