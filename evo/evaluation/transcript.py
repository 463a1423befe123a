"""Writes a launch plan back as a module: the kernels of the candidate's source, and a wrapper that is nothing but the plan.

A candidate's wrapper can behave when it is interpreted and launch something else when it is traced, or the other way round; and a
hostile module can forge either. The transcript has none of its Python: the kernels are reduced to device code
(`evo.evaluation.reduction`), and allocations, fills, copies and launches are written down from the validated plan with their grids,
arguments and constants. Traced, it must give the very plan it was written from, which proves that the plan's code is that of
these kernels; interpreted, it then shows what the plan computes. So neither tier believes a word of the wrapper.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Iterator, Mapping
from typing import Any

from evo.evaluation.reduction import NotReducible, may_format, reduce_to_kernels
from evo.tasks.base import Task
from evo.tracing.plan import VALUE_DTYPES, Allocate, Copy, Fill, Kernel, Launch, LaunchPlan, Operator, Step

_IMPORTS = "import torch as _torch, triton as _triton, triton.language as _tl, triton.tools.tensor_descriptor as _descriptor"


def can_transcribe(task: Task) -> bool:
    """Whether plans of a task have the form that a transcript writes: one phase, without parameters."""
    return task.form == "function" and not task.backward


def transcribe(source: str, plan: LaunchPlan, task: Task) -> str:
    """The module's text.

    Raises:
        NotReducible: The kernels' source, or constants they were compiled with, are not plain enough; the text says which.
    """
    functions = [name for kernel in plan.kernels for name in _functions(kernel)]
    reduced = reduce_to_kernels(source, functions)
    if plan.steps["prepare"]:
        raise NotReducible("it works ahead of its first call on what no task of this form has")
    writer = _Writer(plan)
    body = [line for step in plan.steps["forward"] for line in writer.step(step)]
    arguments = ", ".join(f"_a{position}" for position in range(len(task.training_cases[0].arguments)))
    body.append(f"return {writer.tree(plan.outputs)}")
    return "\n".join([reduced, _IMPORTS, "", f"def {task.entry}({arguments}):", *(f"    {line}" for line in body), ""])


class _Writer:
    """Expressions and statements for the parts of a plan. Storages are named by the tensor that made them."""

    def __init__(self, plan: LaunchPlan) -> None:
        self._plan = plan
        self._bases: dict[int, tuple[str, str]] = {}
        for source in plan.sources:
            value = plan.values[source.value]
            self._bases[value.storage] = (f"_a{source.key}", value.dtype)

    def step(self, step: Step) -> Iterator[str]:
        """Statements for one step."""
        if isinstance(step, Allocate):
            self._bases[step.storage] = (f"_s{step.storage}", "uint8")
            yield f"_s{step.storage} = _torch.empty({self._plan.storages[step.storage]}, dtype=_torch.uint8, device='cuda')"
        elif isinstance(step, Fill):
            yield f"{self.value(step.value)}.fill_({_number(step.scalar)})"
        elif isinstance(step, Copy):
            yield f"{self.value(step.target)}.copy_({self.value(step.source)})"
        elif isinstance(step, Launch):
            yield self._launch(step)
        else:
            yield from self._operator(step)

    def value(self, index: int) -> str:
        """An expression for a view."""
        value = self._plan.values[index]
        name, dtype = self._bases[value.storage]
        if dtype != value.dtype:
            width = VALUE_DTYPES[value.dtype]
            count = self._plan.storages[value.storage] // width * width // VALUE_DTYPES[dtype]
            name = f"_torch.as_strided({name}, ({count},), (1,), 0).view(_torch.{value.dtype})"
        return f"_torch.as_strided({name}, {value.shape}, {value.strides}, {value.offset})"

    def tree(self, node: Any) -> str:
        """What the entry returned, as an expression."""
        if isinstance(node, Mapping):
            if set(node) == {"value"}:
                return self.value(node["value"])
            if set(node) == {"list"}:
                return "[" + ", ".join(map(self.tree, node["list"])) + "]"
            return "{" + ", ".join(f"{key!r}: {self.tree(item)}" for key, item in node.items()) + "}"
        if isinstance(node, list | tuple):
            return "(" + "".join(f"{self.tree(item)}, " for item in node) + ")"
        return _number(node)

    def _launch(self, step: Launch) -> str:
        kernel = self._plan.kernels[step.kernel]
        constants = _constants(kernel)
        arguments = [
            f"{name}={constants[name] if kind == 'constexpr' else self._argument(argument)}"
            for (name, kind), argument in zip(kernel.signature, step.arguments, strict=True)
        ]
        names = {name for name, _ in kernel.signature}
        arguments += [f"{key}={_number(item)}" for key, item in kernel.options.items() if key not in names]
        return f"{kernel.origin['function']}[{tuple(step.grid)}]({', '.join(arguments)})"

    def _argument(self, item: Any) -> str:
        if isinstance(item, Mapping):
            if "value" in item:
                return self.value(item["value"])
            d = item["descriptor"]
            more = ", round_f32_to_tf32=True" if d["tf32"] else ""
            sizes = f"{list(d['shape'])}, {list(d['strides'])}, {list(d['block'])}, {d['padding']!r}{more}"
            return f"_descriptor.TensorDescriptor({self.value(d['value'])}, {sizes})"
        if isinstance(item, list | tuple):
            return "(" + "".join(f"{self._argument(inner)}, " for inner in item) + ")"
        return _number(item)

    def _operator(self, step: Operator) -> Iterator[str]:
        arguments = [self._decoded(item) for item in step.arguments]
        arguments += [f"{_identifier(key)}={self._decoded(item)}" for key, item in step.keywords.items()]
        made = [index for index in step.results if index is not None and self._plan.values[index].storage not in self._bases]
        call = f"_torch.ops.{step.name}.{step.overload}({', '.join(arguments)})"
        if not made:
            yield call
            return
        names = [f"_r{index}" if index in made else "_" for index in step.results]
        yield f"{', '.join(names)} = {call}"
        for index in made:
            value = self._plan.values[index]
            self._bases[value.storage] = (f"_r{index}", value.dtype)

    def _decoded(self, item: Any) -> str:
        if isinstance(item, Mapping):
            if "value" in item:
                return self.value(item["value"])
            key, inner = next(iter(item.items()), ("", ""))
            return "'cuda'" if key == "device" else f"_torch.{_identifier(inner)}"
        return "[" + ", ".join(map(self._decoded, item)) + "]" if isinstance(item, list | tuple) else _number(item)


def _functions(kernel: Kernel) -> Iterator[str]:
    """Names of the function a kernel was made of, and of functions it was given as constants."""
    yield _identifier(kernel.origin.get("function"))
    for item in kernel.origin.get("constants", {}).values():
        if isinstance(item, Mapping) and "function" in item:
            yield _identifier(item["function"])


def _identifier(name: Any) -> str:
    """A name as it may stand in a module: plans are data of hostile processes.

    Raises:
        NotReducible: It is none.
    """
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise NotReducible(f"{name!r} is no name")
    return name


def _constants(kernel: Kernel) -> dict[str, str]:
    """Expressions of the constants a kernel was compiled with.

    Raises:
        NotReducible: One of them is no plain value.
    """
    given = kernel.origin.get("constants", {})
    missing = [name for name, kind in kernel.signature if kind == "constexpr" and name not in given]
    if missing:
        raise NotReducible(f"{kernel.name} is compiled with {', '.join(missing)}, which is no plain value")
    return {name: _constant(item) for name, item in given.items()}


def _constant(item: Any) -> str:
    if isinstance(item, Mapping):
        kind, inner = next(iter(item.items()))
        if kind == "dtype":
            return f"_tl.dtype({inner!r})"
        return _identifier(inner) if kind == "function" else "(" + "".join(f"{_constant(part)}, " for part in inner) + ")"
    if may_format(item):
        raise NotReducible(f"the constant {item!r} may format text")
    return _number(item)


def _number(item: Any) -> str:
    return f"float({str(item)!r})" if isinstance(item, float) and not math.isfinite(item) else repr(item)
