"""What a user may set about the search, and what it may cost: frozen, validated values."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, get_args

SelectionName = Literal["tournament", "map_elites"]


@dataclass(frozen=True)
class SearchSettings:
    """How the search decides. Wrong values raise ValueError with key, given and allowed values.

    Attributes:
        islands: Populations per task that exchange variants only by migration.
        migration_interval: PASSED evaluations of an island between two migrations to the next island of the ring.
        migrants: Variants copied per migration.
        island_capacity: PASSED variants an island keeps.
        tournament_size: Variants that compete to be a parent (tournament selection).
        selection: ``tournament``: the best survive. ``map_elites``: the best of each feature cell survive.
        stall_limit: Evaluated proposals of a lineage without a gain of its best fitness after which it is abandoned (stalled).
        max_repairs: Repairs in vain since a lineage last passed, or failures in a row along parent and child, after which it is
            abandoned (trapped).
        signature_limit: Equal error signatures in a lineage since it last passed after which it is abandoned (trapped).
        crossover_share: Share of requests that combine parents, where two and a crossover operator exist.
        repair_share: Share of requests that repair a failed variant, where one and a repair operator exist.
        explore_share: Share of requests that look for a different algorithm, where an operator for that exists.
        samples: Requests that a language model is asked in a row about the same correct parents, each with another point of view.
        near_duplicate: Share of its text that a language model's module may have from one that passed, and still be evaluated.
        bandit_floor: Share of operator choices that are made evenly, whatever the bandit has learned.
        bandit_memory: Uses after which what an operator once achieved has lost two thirds of its weight.
        fruitless_limit: Failed or repeated proposals in a row after which an operator is not asked for the same parents again.
        operator_failure_limit: Failed proposals in a row, whatever the parents, after which an operator is not asked again before a resume.
        pending_limit: Requests that may await proposal or evaluation; at least twice evaluators × batch size keeps all busy.
        history: Variants shown to an operator besides the parents.
        verify_elites: Variants of the Pareto front per task that are evaluated again, in full, when the budget is used.
        lease_s: Seconds without renewal after which handed-out work is taken back.
        max_attempts: Lost evaluators (or proposers) after which the work itself is recorded as failed.
    """

    islands: int = 3
    migration_interval: int = 20
    migrants: int = 2
    island_capacity: int = 32
    tournament_size: int = 3
    selection: SelectionName = "tournament"
    stall_limit: int = 12
    max_repairs: int = 5
    signature_limit: int = 3
    crossover_share: float = 0.2
    repair_share: float = 0.3
    explore_share: float = 0.1
    samples: int = 1
    near_duplicate: float = 0.99
    bandit_floor: float = 0.1
    bandit_memory: int = 50
    fruitless_limit: int = 3
    operator_failure_limit: int = 25
    pending_limit: int = 64
    history: int = 6
    verify_elites: int = 5
    lease_s: float = 600.0
    max_attempts: int = 3

    def __post_init__(self) -> None:
        at_least_none = {"migrants", "history", "verify_elites"}
        shares = {"crossover_share", "repair_share", "explore_share", "bandit_floor", "near_duplicate"}
        for field in dataclasses.fields(self):
            key, given = field.name, getattr(self, field.name)
            if key == "selection":
                if given not in get_args(SelectionName):
                    raise ValueError(f"{key}: given {given!r}; allowed: {', '.join(get_args(SelectionName))}")
            elif key in shares:
                _check_number(key, given, 0, 1)
            elif key == "lease_s":
                _check_number(key, given, 1e-3, None)
            else:
                _check_whole(key, given, 0 if key in at_least_none else 1)


@dataclass(frozen=True)
class Budget:
    """What a run may use; None is without limit. Verification of elites comes on top and is bounded by `verify_elites`.

    Attributes:
        evaluations: Search evaluations over all tasks, starting kernels included.
        wall_s: Seconds since the first evaluator was ready, summed over all sessions of the run.
        gpu_s: Seconds of device time that evaluations reported; those under way count as the longest so far.
        dollars: Price of language-model exchanges, US dollars.
        tokens: What language models read and write, cached or not.
    """

    evaluations: int | None = None
    wall_s: float | None = None
    gpu_s: float | None = None
    dollars: float | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            given = getattr(self, field.name)
            if given is None:
                continue
            if field.name in ("evaluations", "tokens"):
                _check_whole(field.name, given, 1)
            else:
                _check_number(field.name, given, 0, None)


def _check_whole(key: str, given: object, low: int) -> None:
    if not isinstance(given, int) or isinstance(given, bool) or given < low:
        raise ValueError(f"{key}: given {given!r}; allowed: a whole number of at least {low}")


def _check_number(key: str, given: object, low: float, high: float | None) -> None:
    if isinstance(given, int | float) and not isinstance(given, bool) and low <= given and (high is None or given <= high):
        return
    allowed = f"a number of at least {low:g}" if high is None else f"a number from {low:g} to {high:g}"
    raise ValueError(f"{key}: given {given!r}; allowed: {allowed}")
