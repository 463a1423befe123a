"""Holds the form of a traced plan's results against the reference's: where outputs lie, and which of them get a gradient."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from evo.evaluation.aliasing import Sharing, aliasing_failure, reference_sharing
from evo.evaluation.inputs import differentiable_places, make_inputs
from evo.evaluation.oracle import flatten_outputs
from evo.records import Failure, Stage, Status
from evo.tasks.base import Case, Task
from evo.tracing.plan import LaunchPlan


class Forms:
    """Remembers the form of each task's reference, which runs on small cases on the CPU. Threads may share one: at worst it runs twice."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Sharing, tuple[int, ...]]] = {}

    def failure(self, task: Task, case: Case, plan: LaunchPlan) -> Failure | None:
        """WRONG_STRUCTURE where a plan's results have another form than the reference's; nesting and values are the judge's."""
        if task.name not in self._known:
            self._known[task.name] = reference_sharing(task), reference_places(task)
        shared, places = self._known[task.name]
        found = aliasing_failure(task, plan, shared) or _gradient_failure(task, plan, places)
        return None if found is None else dataclasses.replace(found, message=f"case {case.name}: {found.message}")


def reference_places(task: Task) -> tuple[int, ...]:
    """Outputs of the reference that gradients flow back through; see `evo.tasks.inputs.differentiable_places`."""
    if not task.backward:
        return ()
    inputs = make_inputs(task, task.small_cases[0], 0, "cpu")
    leading: tuple[Any, ...] = (inputs.parameters,) if task.form == "module" else ()
    with torch.enable_grad():
        return differentiable_places(flatten_outputs(task.reference(*leading, *inputs.arguments)).tensors)


def _gradient_failure(task: Task, plan: LaunchPlan, places: tuple[int, ...]) -> Failure | None:
    found = plan.gradient_places
    if not task.backward or found == places:
        return None
    text = f"{task.entry}: gradients flow back through outputs {list(found)}; in the reference through {list(places)}"
    return Failure(Status.WRONG_STRUCTURE, Stage.TRACE, text, "wrong_structure:trace:gradients")
