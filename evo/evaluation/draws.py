"""Chooses the inputs that a candidate is checked on: more of them the more there is to lose, and the cheaper they are."""

from __future__ import annotations

import hashlib

from evo.evaluation.base import Effort
from evo.evaluation.inputs import applicable_variations
from evo.tasks.base import Case, Task
from evo.tasks.draws import Draw, Variation

VERIFY_SEED = 1 << 20
"""First seed of verification: its inputs are none that a search has seen."""
EVERY = 1 << 10


def choose_draws(task: Task, case: Case, effort: Effort, compiled: bool = False) -> tuple[Draw, ...]:
    """The draws of one case, the declared distribution first. They depend on the task and the case alone, so all candidates of a task
    face the same and the oracle's answers are shared; over the cases of a task, all variations take their turn.

    ======== =========================== =====================
    varied   search                      verification
    ======== =========================== =====================
    small    all compiled, 1 interpreted all (interpreted: dealt out over the small cases)
    training 1                           3
    held-out never checked               2
    ======== =========================== =====================

    Random outputs are drawn twice at least, because two seeds must give two patterns.

    Args:
        task, case: What is checked.
        effort: See `Effort`.
        compiled: The tier runs compiled kernels, in milliseconds; else each draw costs a process of Triton's interpreter.
    """
    variations = applicable_variations(task, case)
    count = _count(task, case, effort, compiled)
    first = VERIFY_SEED if effort is Effort.VERIFY else 0
    chosen = variations if count >= len(variations) else _turn(task, case, variations, count)
    if task.oracle == "stochastic" and not chosen:
        chosen = (Variation.PLAIN,)
    return tuple(Draw(first + index, item) for index, item in enumerate((Variation.PLAIN, *chosen)))


def _count(task: Task, case: Case, effort: Effort, compiled: bool = False) -> int:
    if case in task.small_cases:
        if compiled:
            return EVERY
        return 1 if effort is Effort.SEARCH else -(-len(applicable_variations(task, case)) // len(task.small_cases))
    if case in task.training_cases:
        return 1 if effort is Effort.SEARCH else 3
    return 2


def _turn(task: Task, case: Case, variations: tuple[Variation, ...], count: int) -> tuple[Variation, ...]:
    """The next `count` of a shuffled order, each case beginning where the one before it in its group ended."""
    group = next(cases for cases in (task.small_cases, task.training_cases, task.held_out_cases) if case in cases)
    order = sorted(variations, key=lambda item: hashlib.sha256(f"{task.name}:{item.value}".encode()).digest())
    start = group.index(case) * count
    return tuple(order[(start + index) % len(order)] for index in range(min(count, len(order))))
