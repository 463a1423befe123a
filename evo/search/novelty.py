"""Tells, before anything is evaluated, whether a proposed module is one that a task knows already, written differently."""

from __future__ import annotations

from evo.plain import content_id
from evo.records import Variant
from operators.likeness import normal_form
from population_store.base import PopulationStore


class Novelty:
    """Knows all variants of one task by their normal form, from when it is first asked: most runs never ask.

    It is no part of the search's state: what it finds is recorded as the known variant, and a replay reads that.

    Args:
        task: Task name.
        store: Of the run.
    """

    def __init__(self, task: str, store: PopulationStore) -> None:
        self._task = task
        self._store = store
        self._ready = False
        self._known: dict[str, str] = {}

    def prepare(self) -> None:
        """Reads what the store has, once; to be called before `twin` while nothing is applied that the store lacks."""
        if not self._ready:
            self._ready = True
            for variant in self._store.modules(self._task):
                self.see(variant)

    def see(self, variant: Variant) -> None:
        """A variant that a request led to."""
        form = normal_form(variant.source) if self._ready else None
        if form is not None:
            self._known.setdefault(content_id(form), variant.variant_id)

    def twin(self, source: str) -> str | None:
        """Id of the oldest variant that differs from a module in layout, comments and names of local variables only; None if it is new."""
        form = normal_form(source)
        return None if form is None else self._known.get(content_id(form))
