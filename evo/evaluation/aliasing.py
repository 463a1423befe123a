"""Whether outputs share memory with inputs or with each other where the reference makes new memory: callers would write into both."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import torch

from evo.evaluation.inputs import make_inputs
from evo.evaluation.oracle import flatten_outputs, matrix_products
from evo.records import Failure, Stage, Status
from evo.tasks.base import Task
from evo.tracing.plan import LaunchPlan

Sharing = frozenset[tuple[str, str]]
"""Pairs of names that lie in one storage: ``("output 0", "argument 1")``, ``("output 0", "output 1")``."""


def aliasing_failure(task: Task, plan: LaunchPlan, shared: Sharing) -> Failure | None:
    """What is wrong with where the outputs of a plan lie.

    Args:
        task: Whose entry was traced.
        plan: As traced; it knows each output's storage, so nothing needs to run.
        shared: See `reference_sharing`.
    """
    extra = sorted(plan_sharing(plan) - shared)
    if not extra:
        return None
    text = f"{task.entry}: {extra[0][0]} shares memory with {extra[0][1]}; the reference returns new memory"
    return Failure(Status.WRONG_STRUCTURE, Stage.TRACE, text, "wrong_structure:trace:aliasing")


def plan_sharing(plan: LaunchPlan) -> Sharing:
    """Which returned tensors share a storage with an argument, a parameter or each other."""
    places: list[tuple[str, int]] = []
    for index, value in enumerate(_output_values(plan.outputs)):
        if 0 not in plan.values[value].shape:
            places.append((f"output {index}", plan.values[value].storage))
    given = [
        (f"{source.kind} {source.key}", plan.values[source.value].storage) for source in plan.sources if source.kind != "gradient"
    ]
    return _pairs(places, given)


def reference_sharing(task: Task) -> Sharing:
    """The same of the reference, by running it on the first small case that has outputs with elements."""
    for case in task.small_cases:
        inputs = make_inputs(task, case, 0, "cpu")
        leading: tuple[Any, ...] = (inputs.parameters,) if task.form == "module" else ()
        with torch.no_grad(), matrix_products():
            outputs = flatten_outputs(task.reference(*leading, *inputs.arguments)).tensors
        if any(tensor.numel() for tensor in outputs):
            named = [(f"output {index}", _storage(tensor)) for index, tensor in enumerate(outputs) if tensor.numel()]
            given = [(f"parameter {name}", _storage(tensor)) for name, tensor in inputs.parameters.items()]
            given += [
                (f"argument {position}", _storage(item))
                for position, item in enumerate(inputs.arguments)
                if isinstance(item, torch.Tensor) and item.numel()
            ]
            return _pairs(named, given)
    return frozenset()


def _pairs(outputs: list[tuple[str, int]], given: list[tuple[str, int]]) -> Sharing:
    pairs = [*combinations(outputs, 2), *((output, source) for output in outputs for source in given)]
    return frozenset((one, other) for (one, here), (other, there) in pairs if here == there)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _output_values(node: Any) -> list[int]:
    """Values of the tensors among a plan's outputs, in the order in which `flatten_outputs` meets them."""
    if isinstance(node, dict):
        if set(node) == {"value"} and isinstance(node["value"], int):
            return [node["value"]]
        return [value for item in node.values() for value in _output_values(item)]
    return [value for item in node for value in _output_values(item)] if isinstance(node, list) else []
