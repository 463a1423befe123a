"""Tells, before anything is evaluated, whether a proposed module is one that a task knows already, written differently."""

from __future__ import annotations

from evo.records import Variant
from evo.search.archive import Archive
from operators.likeness import normal_form


class Novelty:
    """Knows all variants of one task by their normal form, which it works out when first asked: most runs never ask.

    It is no part of the search's state: what it finds is recorded as the known variant, and a replay reads that.

    Args:
        archive: Of the task.
    """

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._seen: set[str] = set()
        self._known: dict[str, str] = {}

    def twin(self, source: str) -> Variant | None:
        """The oldest variant that differs from a module in layout, comments and names of local variables only; None if it is new."""
        form = normal_form(source)
        if form is None:
            return None
        for note in self._archive:
            if note.variant_id not in self._seen:
                self._seen.add(note.variant_id)
                known = normal_form(self._archive.variant(note.variant_id).source)
                if known is not None:
                    self._known.setdefault(known, note.variant_id)
        twin = self._known.get(form)
        return None if twin is None else self._archive.variant(twin)
