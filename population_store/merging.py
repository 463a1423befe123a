"""Merging: what a bundle has beyond a store's journal is appended to it, if and only if it continues that very journal."""

from __future__ import annotations

import dataclasses

from evo.errors import BundleError
from evo.records import Event, Spent
from population_store.base import Entry, EvaluationEntry, PopulationStore, TrialEntry
from population_store.bundles import Bundle, Point, points_of


def merge(store: PopulationStore, bundle: Bundle, where: str) -> int:
    """Appends what is new, in one commit.

    Args:
        store: Open for writing.
        bundle: Checked already.
        where: What a message calls the bundle.

    Returns:
        How many entries were new; 0 where the store has all of them.

    Raises:
        BundleError: It is of another run, an earlier bundle is missing, or store and bundle continue one journal in two ways; nothing was
            appended.
    """
    if bundle.header != store.header:
        raise BundleError(where, given=f"a bundle of run {bundle.header.name!r} of {bundle.header.created}", allowed=_run(store))
    old = [entry for _, entry in store.journal()]
    known = tuple(points_of(store.header, old))
    missing = bundle.base.entries - known[-1].entries
    if missing > 0:
        raise BundleError(where, action=f"it begins {missing} entries after the store's end: merge the bundle before it first")
    theirs = {bundle.base.entries: bundle.base} | {point.entries: point for point in bundle.points}
    for ours in known[bundle.base.entries :]:
        if ours != theirs.get(ours.entries, ours):
            raise _diverged(where, ours, known[-1], bundle.head)
    fresh = bundle.entries[known[-1].entries - bundle.base.entries :]
    if not fresh:
        return 0
    names = [name for entry in (*old, *fresh) if (name := _name(entry)) is not None]
    if len(set(names)) < len(names):
        raise BundleError(where, action="it records something twice")
    try:
        store.record(fresh, _later(store.spent, bundle.spent))
    except (ValueError, OverflowError) as error:
        raise BundleError(where, action=f"its entries contradict each other: {error}") from None
    return len(fresh)


def _name(entry: Entry) -> tuple[object, ...] | None:
    """What a journal holds once; None for an event, which may come again."""
    if isinstance(entry, Event):
        return None
    if isinstance(entry, EvaluationEntry):
        return type(entry), entry.number, entry.purpose
    return type(entry), entry.number, entry.position if isinstance(entry, TrialEntry) else 0


def _run(store: PopulationStore) -> str:
    return f"one of this store's run {store.header.name!r} of {store.header.created}"


def _diverged(where: str, first: Point, ours: Point, theirs: Point) -> BundleError:
    return BundleError(
        where,
        action=f"store and bundle differ from entry {first.entries} on: the run went on in both places at once. The store ends at "
        f"{ours}, the bundle at {theirs}; keep one of them, and begin a new store from it",
    )


def _later(ours: Spent, theirs: Spent) -> Spent:
    """What was spent by the end of both: the bundle's entries come after ours, but work of ours that was lost counts too."""
    values = {field.name: max(getattr(ours, field.name), getattr(theirs, field.name)) for field in dataclasses.fields(Spent)}
    for kind in ("dollars", "tokens"):
        committed = max(getattr(spent, kind) + getattr(spent, f"held_{kind}") for spent in (ours, theirs))
        values[f"held_{kind}"] = max(0, committed - values[kind])
    return Spent(**values)
