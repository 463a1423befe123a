"""Whether outputs share memory with inputs or with each other where the reference makes new memory: callers would write into both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch

from evo.evaluation.inputs import Inputs, make_inputs
from evo.evaluation.oracle import flatten_outputs
from evo.records import Failure, Stage, Status
from evo.tasks.base import Task
from evo.tracing.plan import VALUE_DTYPES, LaunchPlan

Sharing = frozenset[tuple[str, str]]
"""Pairs of names that share memory: ``("output 0", "argument 1")``, ``("output 0", "output 1")``."""


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
    """Which returned tensors lie in the storage of an argument or a parameter, or overlap each other."""
    outputs = []
    for index, place in enumerate(output_values(plan.outputs)):
        value = plan.values[place]
        if 0 not in value.shape:
            start = value.offset * VALUE_DTYPES[value.dtype]
            outputs.append(_Place(f"output {index}", value.storage, start, value.extent))
    given = [
        _Place(f"{source.kind} {source.key}", plan.values[source.value].storage)
        for source in plan.sources
        if source.kind != "gradient"
    ]
    return _pairs(outputs, given)


def reference_sharing(task: Task) -> Sharing:
    """The same of the reference, on any of the small cases: it may return its argument for one dtype and new memory for another.

    A reference that does not run on every machine says it itself, by an attribute `sharing`.
    """
    known: Sharing | None = getattr(task.reference, "sharing", None)
    if known is not None:
        return known
    shared: set[tuple[str, str]] = set()
    for case in task.small_cases:
        inputs = make_inputs(task, case, 0, "cpu")
        leading: tuple[Any, ...] = (inputs.parameters,) if task.form == "module" else ()
        with torch.no_grad():
            outputs = flatten_outputs(task.reference(*leading, *inputs.arguments)).tensors
        shared |= tensor_sharing(outputs, inputs)
    return frozenset(shared)


def tensor_sharing(outputs: Iterable[torch.Tensor], inputs: Inputs) -> Sharing:
    """The same of tensors: flattened outputs of a call, and what it was given."""
    found = [_place(f"output {index}", tensor) for index, tensor in enumerate(outputs) if tensor.numel()]
    given = [_place(f"parameter {name}", tensor) for name, tensor in inputs.parameters.items() if tensor.numel()]
    given += [
        _place(f"argument {position}", item)
        for position, item in enumerate(inputs.arguments)
        if isinstance(item, torch.Tensor) and item.numel()
    ]
    return _pairs(found, given)


def output_values(node: Any) -> list[int]:
    """Values of the tensors among a plan's outputs, in the order in which `evo.evaluation.oracle.flatten_outputs` meets them."""
    if isinstance(node, dict):
        if set(node) == {"value"} and isinstance(node["value"], int):
            return [node["value"]]
        return [value for item in node.values() for value in output_values(item)]
    return [value for item in node for value in output_values(item)] if isinstance(node, list | tuple) else []


@dataclass(frozen=True)
class _Place:
    """Bytes [start, end) of a storage."""

    name: str
    storage: int
    start: int = 0
    end: int = 0


def _pairs(outputs: list[_Place], given: list[_Place]) -> Sharing:
    # Halves of one buffer are no harm; whatever lies in a caller's storage is.
    mutual = [(a, b) for a, b in combinations(outputs, 2) if a.storage == b.storage and a.start < b.end and b.start < a.end]
    theirs = [(output, source) for output in outputs for source in given if output.storage == source.storage]
    return frozenset((one.name, other.name) for one, other in (*mutual, *theirs))


def _place(name: str, tensor: torch.Tensor) -> _Place:
    width = tensor.element_size()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset())
    return _Place(name, tensor.untyped_storage().data_ptr(), start * width, (start + last + 1) * width)
