"""What a trace of a suite's kernel tells of its calls: which run, what they update and return, and which torch operators they use."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from evo.errors import TaskError
from evo.evaluation.aliasing import Sharing, output_values, plan_sharing
from evo.knobs import read_knobs
from evo.records import Configuration, Failure, Status
from evo.suites.calls import Call, Chosen, Composed
from evo.suites.tritonbench_files import ENTRY
from evo.tasks.base import DEFAULT_OPERATORS, Case, Task, TensorSpec
from evo.tracing.compiler import oversized
from evo.tracing.effects import written_by
from evo.tracing.plan import VALUE_DTYPES, LaunchPlan, Operator
from evo.tracing.targets import target_named
from evo.tracing.workbench import Job, Workbench

HOSTED = "its wrapper looks at values, which no trace can follow: a GPU hosts it"
"""Noted of a kernel whose evaluations take many times as long as those of others, each with the device to itself."""


@dataclass(frozen=True)
class Launched:
    """Cases that run, and what is known of all of them.

    Attributes:
        small, training, held_out: As in a task.
        mutates: Positions of arguments that are updated.
        sharing: Which outputs lie in an argument or overlap each other, see `evo.evaluation.aliasing.Sharing`.
        operators: Of torch, that the kernel's own wrapper uses.
    """

    small: tuple[Case, ...]
    training: tuple[Case, ...]
    held_out: tuple[Case, ...]
    mutates: tuple[int, ...]
    sharing: Sharing
    operators: frozenset[str]


def launched(source: str, calls: Composed, picked: Chosen, bench: Workbench, notes: list[str]) -> Launched:
    """Traces every chosen call; those that cannot be traced are left out, and noted.

    Raises:
        TaskError: No small or no scored call is left.
    """
    names = calls.names()
    every: dict[Call, Case] = {call: calls.case(call, names[call]) for group in vars(picked).values() for call in group}
    plans, operators = _plans(source, list(every.values()), bench)
    mutates, forms = _agreed({call: plans[case.name] for call, case in every.items()}, every)
    apart = {call.form for call in every} - forms
    if apart:
        notes.append(f"{len(apart)} forms of calls are left out: they update other arguments than the rest")
    good: dict[Call, Case] = {}
    failures: list[str] = []
    for call, case in every.items():
        plan = plans.get(case.name)
        if isinstance(plan, Failure):
            failures.append(_said(plan))
        elif call.form in forms:
            good[call] = calls.case(call, case.name, _returned_bytes(plan) if plan is not None else 0)
    notes += [f"a size is left out: {text}" for text in dict.fromkeys(failures)]
    notes += [HOSTED] if None in plans.values() else []
    small, training, held_out = (tuple(good[call] for call in group if call in good) for group in vars(picked).values())
    if not training:
        training, held_out = held_out[:1], held_out[1:]
    if small and not training:
        training = small[-1:]
        notes.append("no size that is measured runs: scored is the largest of its test")
    if not small or not training:
        raise TaskError("the suite's own kernel", given="; ".join(dict.fromkeys(failures)) or "no size left")
    small = tuple(dataclasses.replace(case, name=f"small_{case.name}") for case in small)
    shared = (plan_sharing(plan) for plan in plans.values() if isinstance(plan, LaunchPlan))
    return Launched(small, training, held_out, mutates, frozenset().union(*shared), operators)


def _plans(source: str, cases: Sequence[Case], bench: Workbench) -> tuple[dict[str, LaunchPlan | Failure | None], frozenset[str]]:
    """A plan by case, None where the wrapper looks at values; and the operators of torch that its wrapper uses."""
    try:
        configuration = read_knobs(source).default
    except ValueError:
        configuration = Configuration()  # the tracer's lint says what is wrong
    task = _task(source, cases)
    found: dict[str, LaunchPlan | Failure | None] = {}
    for case, item in zip(
        cases, bench.prepare([Job(source, task, case, configuration, binaries=False) for case in cases]), strict=True
    ):
        if isinstance(item, Failure):
            found[case.name] = None if item.status is Status.UNTRACEABLE else item
        else:
            found[case.name] = _hopeless(item.plan, case) or item.plan
    plans = [plan for plan in found.values() if isinstance(plan, LaunchPlan)]
    used = {step.name for plan in plans for steps in plan.steps.values() for step in steps if isinstance(step, Operator)}
    return found, frozenset(used) - DEFAULT_OPERATORS


def _hopeless(plan: LaunchPlan, case: Case) -> Failure | None:
    """Why no evaluator will compile a plan: one such size would have the kernel refused in all."""
    warp = target_named(plan.target).warp_size
    found = next(filter(None, (oversized(kernel, warp) for kernel in plan.kernels)), None)
    return None if found is None else dataclasses.replace(found, message=f"case {case.name}: {found.message}")


def _said(failure: Failure) -> str:
    """What a failure says, without lines of the suite's code: a compiler's message ends with what it is about."""
    lines = [line.strip() for line in failure.message.splitlines() if line.strip()]
    case, _, rest = lines[0].partition(": ")
    words = lines[-1] if failure.status is Status.COMPILE_ERROR and len(lines) > 1 else rest
    return f"{case}: {' '.join(words.split())[:240]}"


def _agreed(
    plans: Mapping[Call, LaunchPlan | Failure | None], cases: Mapping[Call, Case]
) -> tuple[tuple[int, ...], frozenset[int]]:
    """Positions of arguments that are updated, and the forms of calls that have tensors there: all, or those like the most frequent one."""
    updated: dict[int, set[int]] = {}
    for call, plan in plans.items():
        updated.setdefault(call.form, set()).update(set() if plan is None else _updated(plan))

    def fits(form: int, places: set[int]) -> bool:
        given = [case.arguments for call, case in cases.items() if call.form == form]
        return all(place < len(item) and isinstance(item[place], TensorSpec) for item in given for place in places)

    every = set().union(*updated.values())
    if all(fits(form, every) for form in updated):
        return tuple(sorted(every)), frozenset(updated)
    counts = Counter(call.form for call in cases)
    places = updated[max(counts, key=lambda form: (counts[form], -form))]
    return tuple(sorted(places)), frozenset(form for form in updated if updated[form] == places and fits(form, places))


def _task(source: str, cases: Sequence[Case]) -> Task:
    """For tracing: a kernel of others may use any operator of torch; which ones it uses is asked of its plans."""
    small = dataclasses.replace(cases[0], name="it is not looked at")
    return Task(
        name="suite", description="", entry=ENTRY, reference=_task, training_cases=tuple(cases), held_out_cases=(),
        small_cases=(small,), starting_kernels=(), allowed_operators=_every_operator(),
    )  # fmt: skip


@functools.cache
def _every_operator() -> frozenset[str]:
    """That torch has, by name without overload."""
    names = (name.partition("::") for name in torch._C._dispatch_get_all_op_names())
    return frozenset(f"{space}.{rest.partition('.')[0]}" for space, _, rest in names)


def _updated(plan: LaunchPlan | Failure) -> set[int]:
    if isinstance(plan, Failure):
        return set()
    written = {storage for step in plan.steps.get("forward", ()) for storage in written_by(step, plan)}
    return {
        int(source.key) for source in plan.sources if source.kind == "argument" and plan.values[source.value].storage in written
    }


def _returned_bytes(plan: LaunchPlan | Failure) -> int:
    if isinstance(plan, Failure):
        return 0
    values = [plan.values[place] for place in output_values(plan.outputs)]
    return sum(math.prod(value.shape) * VALUE_DTYPES[value.dtype] for value in values)
