"""Copies a whole store to another place, of the same kind or another, and compares the two before the copy is there."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, zip_longest

from evo.errors import StoreError, StoreInUseError
from population_store.base import Entry, PopulationStore
from population_store.opening import backend_of, open_store

_BATCH = 500
"""Entries in one commit."""

_RANKED = 100
"""Rows of each task's ranking that are compared; the journal is compared whole."""


def copy_store(source: str, target: str) -> int:
    """Copies header, journal and budget; what a store works out from its journal is worked out anew.

    Args:
        source: Path or URL; nobody may write it meanwhile.
        target: Path or URL of a store that does not exist yet. It is there when all of it is, and was found equal.

    Returns:
        How many entries the journal has.

    Raises:
        StoreMissingError: There is no such source.
        StoreInUseError: A run wrote the source meanwhile.
        StoreError: The target exists already, or one of the two cannot be used.
    """
    with open_store(source) as old:
        before = old.spent
        with backend_of(target).build(target, old.header) as new:
            count = 0
            entries = iter(_entries(old))
            while batch := list(islice(entries, _BATCH)):
                new.record(batch, before)
                count += len(batch)
            new.record([], before)
            if old.spent != before or any(True for _ in old.journal(count)):
                action = "stop it first: what it records meanwhile would be missing in the copy"
                raise StoreInUseError(f"{source}: a run writes it", action=action)
            _compare(old, new, target)
    return count


def _compare(old: PopulationStore, new: PopulationStore, target: str) -> None:
    # By their texts, because 1 == True == 1.0.
    equal = all(repr(left) == repr(right) for left, right in zip_longest(_entries(old), _entries(new)))
    equal = equal and (old.header, old.spent, old.counts()) == (new.header, new.spent, new.counts())
    equal = equal and all(repr(old.ranking(task, _RANKED)) == repr(new.ranking(task, _RANKED)) for task in old.counts())
    if not equal:
        raise StoreError(
            f"{target}: the copy is not equal to its source, and was not kept", action="see that both disks are sound"
        )


def _entries(store: PopulationStore) -> Iterable[Entry]:
    return (entry for _, entry in store.journal())
