"""Tells, before anything is evaluated, whether a model's module is nearly one that passed: a change of a token or two in a long one."""

from __future__ import annotations

import numpy as np

from evo.records import Variant
from operators.likeness import normal_text, shingles
from population_store.base import PopulationStore

KNOWN = 4096
"""Modules that are compared: the best of what the store has when the first model answers, and the newest since."""

SKETCH = 128
"""Smallest hashes of a module's shingles: the share that two modules have in common estimates their similarity (Broder, 1997, "On the
resemblance and containment of documents")."""

SLACK = 0.08
"""What such an estimate may be too low by, with hardly an exception."""

HASHES = 4096
"""Smallest hashes that are kept of a module to compare it in full, which are all of one of some 30 kB; of longer ones they tell the
similarity to about 0.002. Where a search has converged, thousands are alike, and none is read or parsed again for a reply."""


class Near:
    """Modules of one task that passed. Those that failed do not count: a small change is what mends them.

    It is no part of the search's state: what it finds is recorded as a proposal that failed, and a replay reads that.

    Args:
        task: Task name.
        store: Of the run.
        threshold: Similarity above which a module is nearly another one.
    """

    def __init__(self, task: str, store: PopulationStore, threshold: float) -> None:
        self._task = task
        self._store = store
        self._threshold = threshold
        self._ready = False
        self._ids: list[str] = []
        self._hashes: list[np.ndarray] = []
        self._sketches = np.zeros((0, SKETCH), dtype=np.uint32)

    def prepare(self) -> None:
        """Reads what the store has, once; to be called before `of` while nothing is applied that the store lacks."""
        if not self._ready:
            self._ready = True
            for row in reversed(self._store.ranking(self._task, KNOWN // 2)):
                self.passed(row.variant)

    def passed(self, variant: Variant) -> None:
        """A variant that passed."""
        text = normal_text(variant.source) if self._ready else None
        if text is None:
            return
        hashes = _smallest(shingles(text, names=True))
        if len(self._ids) == KNOWN:
            del self._ids[0], self._hashes[0]
            self._sketches = self._sketches[1:]
        self._ids.append(variant.variant_id)
        self._hashes.append(hashes)
        self._sketches = np.vstack([self._sketches, _sketch(hashes)])

    def of(self, source: str) -> tuple[str, float] | None:
        """Id of the most similar variant that passed, and how similar it is; None where none is similar enough."""
        text = normal_text(source)
        if text is None or not self._ids:
            return None
        mine = _smallest(shingles(text, names=True))
        used = self._sketches > 0
        shared = (np.isin(self._sketches, _sketch(mine)) & used).sum(axis=1) / np.maximum(used.sum(axis=1), 1)
        best: tuple[str, float] | None = None
        for place in np.flatnonzero(shared >= self._threshold - SLACK):
            alike = _alike(mine, self._hashes[place])
            if alike > self._threshold and (best is None or alike > best[1]):
                best = self._ids[place], alike
        return best


def _smallest(hashes: frozenset[int]) -> np.ndarray:
    """The smallest hashes in order, `HASHES` at most."""
    return np.array(sorted(hashes)[:HASHES], dtype=np.uint32)


def _sketch(hashes: np.ndarray) -> np.ndarray:
    """The smallest of ordered hashes, and zeros where there are fewer."""
    return np.pad(hashes[:SKETCH], (0, max(0, SKETCH - len(hashes))))


def _alike(first: np.ndarray, second: np.ndarray) -> float:
    """Share of common hashes (Jaccard), up to where both are known."""
    for cut in (item[-1] for item in (first, second) if len(item) == HASHES):
        first, second = first[first <= cut], second[second <= cut]
    shared = len(np.intersect1d(first, second, assume_unique=True))
    return shared / max(1, len(first) + len(second) - shared)
