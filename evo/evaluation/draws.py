"""Chooses the inputs that a candidate is checked on: more of them the more there is to lose, and the cheaper they are."""

from __future__ import annotations

import hashlib

from evo.evaluation.base import Effort
from evo.evaluation.inputs import applicable_variations
from evo.tasks.base import Case, Task, TensorSpec
from evo.tasks.draws import Draw, Variation

VERIFY_SEED = 1 << 20
"""First seed of verification: its inputs are none that a search has seen."""


def choose_draws(task: Task, case: Case, effort: Effort, compiled: bool = False) -> tuple[Draw, ...]:
    """The draws of one case, the declared distribution first. They depend on the task and the case alone, so all candidates of a task
    face the same and the oracle's answers are shared; over the cases of a task, all variations take their turn.

    ========================= ============================ ================================
    varied draws              search                       verification
    ========================= ============================ ================================
    small case, compiled      all                          all
    small case, interpreted   1 on every second case       all, dealt out over the cases
    training case             1                            3
    held-out case             (not checked)                2
    ========================= ============================ ================================

    Random outputs are drawn twice at least, because two seeds must give two patterns.

    Args:
        task, case: What is checked.
        effort: See `Effort`.
        compiled: The tier runs compiled kernels, in milliseconds; else each draw costs a process of Triton's interpreter.
    """
    own, rest = _dealt(task, case, compiled)
    first = VERIFY_SEED if effort is Effort.VERIFY else 0
    chosen = (*own, *rest)[: _count(task, case, effort, compiled, len(own))]
    if task.oracle == "stochastic" and not chosen:
        chosen = (Variation.PLAIN,)
    return tuple(Draw(first + index, item) for index, item in enumerate((Variation.PLAIN, *chosen)))


def _count(task: Task, case: Case, effort: Effort, compiled: bool, own: int) -> int:
    if case in task.small_cases:
        every_second = (task.small_cases.index(case) + 1) % 2
        return len(Variation) if compiled else every_second if effort is Effort.SEARCH else own
    if case in task.training_cases:
        return 1 if effort is Effort.SEARCH else 3
    return 2


def suitable_variations(task: Task, case: Case, compiled: bool) -> tuple[Variation, ...]:
    """The variations that tell of the kernel on this case.

    Triton's interpreter (3.6 to 3.9) gets subnormal bfloat16 wrong when it widens them to float32, so it is not given any.
    """
    found = applicable_variations(task, case)
    specs = [*task.parameters.values(), *(item for item in case.arguments if isinstance(item, TensorSpec))]
    if compiled or all(spec.dtype != "bfloat16" for spec in specs):
        return found
    return tuple(item for item in found if item is not Variation.DENORMAL)


def _dealt(task: Task, case: Case, compiled: bool) -> tuple[tuple[Variation, ...], tuple[Variation, ...]]:
    """The variations that fall to this case when all are dealt out, shuffled by the task's name, over the cases of its group; and
    those that would suit it too."""
    group = next(cases for cases in (task.small_cases, task.training_cases, task.held_out_cases) if case in cases)
    suits = {other: suitable_variations(task, other, compiled) for other in group}
    every = sorted({item for items in suits.values() for item in items}, key=lambda item: _shuffled(task.name, item.value))
    own = []
    for index, item in enumerate(every):
        takers = [other for other in group if item in suits[other]]
        if takers[index % len(takers)] == case:
            own.append(item)
    return tuple(own), tuple(item for item in every if item in suits[case] and item not in own)


def _shuffled(*names: str) -> bytes:
    return hashlib.sha256(":".join(names).encode()).digest()
