"""Decides the next request of a task: island, lineage, kind of step, parents and operator; pure in state and number."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from evo.records import Request
from evo.search.islands import Island
from evo.search.randomness import Draw, stream
from evo.search.selection import Member
from evo.search.setup import OperatorInfo
from evo.search.state import NOTHING, TaskState
from evo.search.traps import Lineage
from operators.base import OperatorKind

SAMPLED = frozenset({OperatorKind.MUTATION, OperatorKind.CROSSOVER, OperatorKind.EXPLORE})
"""Kinds of which several samples are asked for; repairs are bounded, and beginnings differ anyway."""

STRONGER = 0.98
"""Of a latency: what is below differs by more than noise."""

REPAIR_FROM_NOTHING = 0.5
"""Share of requests that repair a failure while nothing has passed: a chain of repairs may be a dead end, a new module a failure."""


def choose(state: TaskState, number: int, seed: int, operators: Sequence[OperatorInfo]) -> Request | None:
    """The request with that number, or None where no operator may make anything new of any variant there is."""
    rng = stream(seed, Draw.CHOICE, state.name, number)
    if state.from_nothing:
        return _from_nothing(state, number, operators, rng)
    if state.baseline is None:
        return None
    kinds = _kinds(state, rng)
    again = _further_sample(state, number, operators)
    if again is not None:
        return again
    for island in sorted(state.islands, key=lambda item: (item.requests, item.index)):
        begun = _beginning(state, island, number, operators, rng)
        if begun is not None:
            return begun
        for kind in kinds:
            usable = [operator for operator in operators if operator.kind is kind]
            request = _step(state, island, number, usable, kind, rng) if usable else None
            if request is not None:
                return request
    return None


def _kinds(state: TaskState, rng: np.random.Generator) -> tuple[OperatorKind, ...]:
    """The kind of step drawn by its share, then the others to fall back on."""
    draw, settings = rng.random(), state.settings
    drawn = OperatorKind.MUTATION
    if draw < settings.repair_share:
        drawn = OperatorKind.REPAIR
    elif draw < settings.repair_share + settings.crossover_share:
        drawn = OperatorKind.CROSSOVER
    elif draw < settings.repair_share + settings.crossover_share + settings.explore_share:
        drawn = OperatorKind.EXPLORE
    fallback = (OperatorKind.MUTATION, OperatorKind.CROSSOVER, OperatorKind.REPAIR, OperatorKind.EXPLORE)
    return (drawn, *(kind for kind in fallback if kind is not drawn))


def _from_nothing(state: TaskState, number: int, operators: Sequence[OperatorInfo], rng: np.random.Generator) -> Request | None:
    """While nothing has passed: a new module or the repair of one that failed, as likely."""
    generators = [item for item in operators if item.kind is OperatorKind.GENERATE]
    repairers = [item for item in operators if item.kind is OperatorKind.REPAIR]
    repair_first = rng.random() < REPAIR_FROM_NOTHING
    for island in sorted(state.islands, key=lambda item: (item.requests, item.index)):
        repair = _step(state, island, number, repairers, OperatorKind.REPAIR, rng) if repairers else None
        if repair is not None and repair_first:
            return repair
        names = sorted(item.name for item in generators if state.exhaustion.is_open(item.name, ()))
        if names:
            lineage = next(reversed(island.lineages.values()))
            return Request(number, state.name, island.index, lineage.name, state.bandit.choose(names, rng), ())
        if repair is not None:
            return repair
    return None


def _further_sample(state: TaskState, number: int, operators: Sequence[OperatorInfo]) -> Request | None:
    """The newest request once more, while a model-driven operator has not had all its samples of it: its prompt is cached now."""
    newest = state.newest
    if newest is None or newest.samples % state.settings.samples == 0:
        return None
    request = newest.request
    asks_model = any(item.name == request.operator and item.needs_model and item.kind in SAMPLED for item in operators)
    still = all(parent in state.archive for parent in request.parents) and not state.lineage_of(request).abandoned
    if not asks_model or not still or not state.exhaustion.is_open(request.operator, request.parents):
        return None
    return dataclasses.replace(request, number=number)


def _beginning(
    state: TaskState, island: Island, number: int, operators: Sequence[OperatorInfo], rng: np.random.Generator
) -> Request | None:
    """The first child of a lineage that replaces an abandoned one, where an operator is there that begins anew."""
    beginners = [item for item in operators if item.kind in (OperatorKind.RESTART, OperatorKind.GENERATE)]
    if not beginners:
        return None
    names = {item.name for item in beginners}
    for lineage in island.open_lineages():
        if not lineage.replaces or lineage.strategies:
            continue
        tried = sum(count for name, count in lineage.tried.items() if name in names)
        if state.under_way.proposing[lineage.name] or tried >= state.settings.fruitless_limit:
            continue
        fitting = [item for item in beginners if not item.arity or lineage.root != NOTHING]
        found: dict[str, tuple[str, ...]] = {item.name: (lineage.root,) if item.arity else () for item in fitting}
        usable = [name for name in sorted(found) if state.exhaustion.is_open(name, found[name])]
        if usable:
            name = state.bandit.choose(usable, rng)
            return Request(number, state.name, island.index, lineage.name, name, found[name])
    return None


def _step(
    state: TaskState, island: Island, number: int, usable: Sequence[OperatorInfo], kind: OperatorKind, rng: np.random.Generator
) -> Request | None:
    mains = _broken(state, island) if kind is OperatorKind.REPAIR else _fit(state, island, rng)
    for main, lineage in mains:
        found: dict[str, tuple[str, ...]] = {}
        partners: dict[int, tuple[tuple[str, ...], ...]] = {}
        for operator in usable:
            if operator.arity not in partners:
                partners[operator.arity] = tuple(_partners(state, island, main, operator.arity - 1, rng))
            for others in partners[operator.arity]:
                if state.exhaustion.is_open(operator.name, (main, *others)):
                    found[operator.name] = (main, *others)
                    break
        if kind is OperatorKind.MUTATION:
            chains = state.bandit.chains(operator.name for operator in usable if operator.chainable)
            found |= {name: (main,) for name in chains if state.exhaustion.is_open(name, (main,))}
        if found:
            name = state.bandit.choose(_unlike(lineage, sorted(found)), rng)
            return Request(number, state.name, island.index, lineage.name, name, found[name])
    return None


def _unlike(lineage: Lineage, names: list[str]) -> list[str]:
    """Until a restarted lineage has its first child, operators that its predecessor did not try, where there are any."""
    if lineage.evaluated:
        return names
    return [name for name in names if name not in lineage.avoid] or names


def _fit(state: TaskState, island: Island, rng: np.random.Generator) -> Iterator[tuple[str, Lineage]]:
    """PASSED variants as main parents: one selected in a lineage drawn evenly, then all others, open lineages first."""
    by_lineage: dict[str, list[Member]] = {}
    for member in island.members.values():
        by_lineage.setdefault(member.lineage, []).append(member)
    open_ones = sorted(name for name in by_lineage if not island.lineages[name].abandoned)
    if not by_lineage:
        return
    tried = ""
    if open_ones:
        name = open_ones[int(rng.integers(len(open_ones)))]
        member = state.selection.pick(by_lineage[name], rng)
        tried = member.variant_id
        yield tried, island.lineages[name]
    rest = sorted(island.ranked(), key=lambda item: island.lineages[item.lineage].abandoned)
    for member in rest:
        if member.variant_id != tried:
            yield member.variant_id, island.lineages[member.lineage]


def _broken(state: TaskState, island: Island) -> Iterator[tuple[str, Lineage]]:
    """Failed variants that nobody is repairing, the furthest come first, of equals the newest; in no lineage more repairs than may be
    in vain before it is abandoned, those under way included."""
    busy, repairs = state.under_way.parents, state.under_way.repairs
    for failed in sorted(island.failed.values(), key=lambda item: (-item.stage, -item.number)):
        lineage = island.lineages[failed.lineage]
        if failed.variant_id not in busy and lineage.repairs + repairs[lineage.name] < state.settings.max_repairs:
            yield failed.variant_id, lineage


def _partners(state: TaskState, island: Island, main: str, count: int, rng: np.random.Generator) -> Iterator[tuple[str, ...]]:
    """Sets of further parents: led by one selected from the island, of those that are faster than the main parent in some case if there
    are any; then by each other one, best first."""
    if count == 0:
        yield ()
        return
    others = [member for member in island.ranked() if member.variant_id != main]
    if len(others) < count:
        return
    first = state.selection.pick(_stronger_somewhere(state, main, others) or others, rng)
    ordered = [first, *(member for member in others if member is not first)]
    for place in range(len(ordered) - count + 1):
        yield tuple(member.variant_id for member in ordered[place : place + count])


def _stronger_somewhere(state: TaskState, main: str, others: Sequence[Member]) -> list[Member]:
    """Those that are clearly faster than a variant in one of several cases: a child may have the strengths of both."""

    def latencies(variant_id: str) -> dict[str, float]:
        evaluation = state.archive.parent(variant_id).evaluation
        return {case.case: case.latency_us for case in evaluation.cases} if evaluation is not None else {}

    mine = latencies(main)
    if len(mine) < 2:
        return []
    return [
        other
        for other in others
        if any(latency < STRONGER * mine.get(case, 0.0) for case, latency in latencies(other.variant_id).items())
    ]
