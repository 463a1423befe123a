"""What is recorded of a proposal: its variant, the known variant that it is in other words, or why it is none."""

from __future__ import annotations

import dataclasses

from evo.records import NoProposal, Proposal, Variant
from evo.search.novelty import Novelty
from population_store.base import OutcomeEntry


def outcome_entry(task: str, number: int, outcome: Proposal | NoProposal, novelty: Novelty) -> OutcomeEntry:
    """The entry to record.

    A model's module that differs from a known variant in layout, comments or names of local variables only is recorded as that
    variant, so that nothing is evaluated twice; what the model wrote stands in the exchange. Rules give modules whose plans are
    compared at evaluation anyway.
    """
    if isinstance(outcome, NoProposal):
        return OutcomeEntry(number, outcome, None)
    try:
        outcome.source.encode()
    except UnicodeEncodeError:
        # A model's reply may hold half a surrogate pair; such a module could be neither identified nor written to a file.
        return OutcomeEntry(number, NoProposal("the module is not valid Unicode text", True, outcome.exchanges), None)
    twin = novelty.twin(outcome.source) if outcome.exchanges else None
    if twin is not None:
        return OutcomeEntry(number, dataclasses.replace(outcome, source=twin.source), twin)
    return OutcomeEntry(number, outcome, Variant(task, outcome.source))
