"""What follows from a task's state: abandoned lineages, restarts and migrations, as events to record.

A pure function of the state: applied events make it return nothing, so a run killed between a verdict and its consequences
finds them again.
"""

from __future__ import annotations

from evo.records import Event, EventKind
from evo.search.islands import Island
from evo.search.randomness import Draw, stream
from evo.search.setup import OperatorInfo
from evo.search.state import NOTHING, TaskState
from operators.base import OperatorKind


def due(state: TaskState, seed: int, operators: tuple[OperatorInfo, ...]) -> tuple[Event, ...]:
    """The next events, to be recorded and applied before asking again; empty when nothing is due."""
    if state.baseline is None and not state.from_nothing:
        return ()
    mutations = tuple(item for item in operators if item.kind is OperatorKind.MUTATION and item.arity == 1)
    for island in state.islands:
        events = _abandonment(state, island, seed, mutations) or _migration(state, island)
        if events:
            return events
    return ()


def _abandonment(state: TaskState, island: Island, seed: int, mutations: tuple[OperatorInfo, ...]) -> tuple[Event, ...]:
    lineages = island.open_lineages()
    for lineage in lineages:
        verdict = lineage.verdict(state.settings)
        if verdict is not None:
            kind, reason = verdict
            if lineage.dollars > 0:
                reason += f"; it cost ${lineage.dollars:.4f}, of it ${lineage.dollars_since_gain:.4f} since its last gain"
            ended = Event(kind, state.name, island.index, lineage.name, lineage.root, reason)
            return ended, _restart(state, island, seed, mutations, f"in place of {lineage.name}")
    if not lineages and any(item.members for item in state.islands):
        return (_restart(state, island, seed, mutations, "no lineage is left"),)
    return ()


def _restart(state: TaskState, island: Island, seed: int, mutations: tuple[OperatorInfo, ...], why: str) -> Event:
    """A new lineage from the island's best, one of its elites, a starting kernel or another island's best, each as likely."""
    if state.from_nothing:
        return Event(EventKind.RESTART, state.name, island.index, island.next_lineage, NOTHING, f"{why}, from nothing")
    rng = stream(seed, Draw.RESTART, state.name, state.restarts)
    own = [member.variant_id for member in island.ranked()]
    starts = [variant_id for variant_id in state.starts if state.archive[variant_id].score > 0]
    others = [item.ranked()[0].variant_id for item in state.islands if item is not island and item.members]
    elites = own[: max(1, len(own) // 4)]
    kinds = (
        ("the island's best", own[:1]),
        ("an elite", elites),
        ("a starting kernel", starts),
        ("another island's best", others),
    )
    ordered = [kinds[place] for place in rng.permutation(len(kinds))]
    draw = rng.random()
    # First among those that some mutation may still change; where there are none, crossover may still use the root.
    fresh = [(kind, [item for item in found if state.exhaustion.any_open(mutations, item)]) for kind, found in ordered]
    kind, found = next(
        (kind, found) for kind, found in (*fresh, *reversed(ordered), ("a starting kernel", state.starts)) if found
    )
    root = found[int(draw * len(found))]
    return Event(EventKind.RESTART, state.name, island.index, island.next_lineage, root, f"{why}, from {kind}")


def _migration(state: TaskState, source: Island) -> tuple[Event, ...]:
    if len(state.islands) < 2 or source.passed_since_migration < state.settings.migration_interval:
        return ()
    target = state.islands[(source.index + 1) % len(state.islands)]
    lineages = target.open_lineages()
    if not lineages:
        return ()
    weakest = min(lineages, key=lambda lineage: lineage.best)
    migrants = [
        member
        for member in source.ranked()[: state.settings.migrants]
        if member.variant_id not in target.members and member.score > target.entry_score
    ]
    reason = f"from island {source.index}"
    return tuple(
        Event(EventKind.MIGRATION, state.name, target.index, weakest.name, member.variant_id, reason) for member in migrants
    )
