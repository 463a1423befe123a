"""A PyTorch function of a suite's file as the reference of a task."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from evo.errors import TaskError
from evo.tasks.base import Argument, Case, Task, TensorSpec
from evo.tasks.inputs import make_inputs

Reference = Callable[..., Any]


def torch_reference(source: str, entry: str) -> Reference:
    """The function `entry` of a module.

    Raises:
        TaskError: The module does not import.
    """
    module = types.ModuleType("suite_reference")
    try:
        exec(compile(source, "suite_reference.py", "exec"), vars(module))
    except Exception as error:
        raise TaskError("the suite's file", given=f"{type(error).__name__}: {error}", action="it must import") from error
    found: Reference = getattr(module, entry)
    return found


def outputs_of(reference: Reference, case: Case) -> int:
    """Bytes of what a call returns, from a run without data; 0 where that cannot be told."""
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            return _nbytes(reference(*map(_empty, case.arguments)))
    except Exception:  # noqa: BLE001  data decides, or no meta kernel is there: it is only an estimate of traffic
        return 0


def mutated_by(reference: Reference, cases: Sequence[Case], where: str) -> tuple[int, ...]:
    """Positions of arguments that a call changes.

    Raises:
        TaskError: A call fails, gives something else the second time on equal inputs, or changes other positions in another case.
    """
    found: set[int] = set()
    for case in cases:
        task = _task_of(case, reference)
        first, second = (_called(reference, make_inputs(task, case, 0, "cpu").arguments, seed, where) for seed in (0, 1))
        if not _same(first, second):
            raise TaskError(
                where, given="other results on equal inputs", action="random operators are not compared value by value"
            )
        before = make_inputs(task, case, 0, "cpu").arguments
        for place, (old, new) in enumerate(zip(before, first[0], strict=True)):
            if isinstance(old, torch.Tensor) and not torch.equal(old.nan_to_num(), new.nan_to_num()):
                found.add(place)
    for case in cases:
        if any(not isinstance(case.arguments[place], TensorSpec) for place in found if place < len(case.arguments)):
            raise TaskError(where, given=f"argument {min(found)} changed in one form of calls alone", allowed="one form for all")
    return tuple(sorted(found))


def _called(reference: Reference, arguments: Sequence[Any], seed: int, where: str) -> tuple[Sequence[Any], Any]:
    torch.manual_seed(seed)
    try:
        with torch.no_grad():
            return arguments, reference(*arguments)
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise TaskError(where, given=text, action="its function must run on inputs that are drawn anew") from error


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return (
            isinstance(second, torch.Tensor)
            and first.shape == second.shape
            and torch.equal(first.nan_to_num(), second.nan_to_num())
        )
    if isinstance(first, tuple | list):
        return len(first) == len(second) and all(map(_same, first, second))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_same(first[key], second[key]) for key in first)
    return True


def _task_of(case: Case, reference: Reference) -> Task:
    """For `make_inputs`, which asks for the parameters of a task."""
    other = Case(f"{case.name}_", case.arguments, case.bytes, case.flops)
    return Task("it", "", "it", reference, (case,), (), (other,), ())


def _empty(item: Argument) -> Any:
    if not isinstance(item, TensorSpec):
        return item
    return torch.empty_strided(item.shape, item.element_strides, dtype=getattr(torch, item.dtype))


def _nbytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return sum(map(_nbytes, parts))
