"""What the steps of a plan touch and may write; for a kernel this is read, conservatively, from its TTIR text.

Pointers are followed from the function's arguments through every operation whose result can hold a pointer (addptr, splat, broadcast,
expand_dims, select, …). Where a pointer takes a way that is not followed (a loop or branch that carries pointers, a call, inline
assembly, an integer made a pointer), every pointer it could be is taken as written. So the answer may name too many arguments,
never too few, for TTIR that Triton's front end made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from evo.tracing.plan import Allocate, Copy, Fill, Launch, LaunchPlan, Operator, Step

_FUNCTION = re.compile(r"tt\.func public @\S+?\((.*?)\)\s*(?:attributes|\{)", re.DOTALL)
_NAME = re.compile(r"%[\w.$-]+")
_WRITES = re.compile(
    r"\b(tt\.store|tt\.atomic_rmw|tt\.atomic_cas|tt\.descriptor_\w*(?:store|scatter|reduce)\w*|tt\.experimental_descriptor_store)\b"
)
_OPAQUE = re.compile(
    r"\b(tt\.call|tt\.elementwise_inline_asm|tt\.extern_elementwise|tt\.int_to_ptr|tt\.ptr_to_int|scf\.while|cf\.\w+br)\b"
)
_POINTER = re.compile(r"!tt\.(ptr|tensordesc)")


def written_arguments(ttir: str) -> frozenset[int]:
    """Positions, among the arguments of the compiled function (constexprs left out), that the kernel may write."""
    header = _FUNCTION.search(ttir)
    if header is None:
        return frozenset(range(4096))
    names = re.findall(r"(%[\w.$-]+)\s*:", header.group(1))
    origins: dict[str, frozenset[int]] = {name: frozenset({index}) for index, name in enumerate(names)}
    everything = frozenset(range(len(names)))
    written: set[int] = set()
    body = ttir[header.end() :]
    loose = _carries_pointers(body)
    for line in body.splitlines():
        operands = _NAME.findall(line.partition("=")[2] if re.match(r"\s*%[^=]*=", line) else line)
        reached = frozenset().union(*(origins.get(name, frozenset()) for name in operands))
        if _OPAQUE.search(line):
            written |= everything if "int_to_ptr" in line or "br" in line.split("(")[0] else reached
        match = _WRITES.search(line)
        if match:
            target = _NAME.search(line[match.end() :])
            written |= everything if target is None or loose else origins.get(target.group(), everything)
        result = re.match(r"\s*(%[\w.$-]+)", line)
        if result and "=" in line and _POINTER.search(line):
            origins[result.group(1)] = reached
    return frozenset(written)


def _carries_pointers(body: str) -> bool:
    """Whether a loop or branch hands pointers on; then a store's target cannot be told by following lines in order."""
    structured = re.compile(r"\bscf\.(for|if|while)\b")
    return any(structured.search(line) and _POINTER.search(line.rpartition("->")[2]) for line in body.splitlines())


def storages_of(step: Step, plan: LaunchPlan) -> Iterator[int]:
    """Every storage a step touches."""
    if isinstance(step, Allocate):
        yield step.storage
        return
    for index in values_of(step):
        yield plan.values[index].storage


def written_by(step: Step, plan: LaunchPlan) -> Iterator[int]:
    """Storages a step makes or may write."""
    if isinstance(step, Allocate):
        yield step.storage
    elif isinstance(step, Fill):
        yield plan.values[step.value].storage
    elif isinstance(step, Copy):
        yield plan.values[step.target].storage
    elif isinstance(step, Operator):
        yield from storages_of(step, plan)
    else:
        kernel = plan.kernels[step.kernel]
        written = written_arguments(kernel.ttir)
        passed = [a for (_, kind), a in zip(kernel.signature, step.arguments, strict=True) if kind != "constexpr"]
        for position, argument in enumerate(passed):
            if position in written or isinstance(argument, list | tuple):
                yield from (plan.values[index].storage for index in references(argument))


def values_of(step: Step) -> Iterator[int]:
    """Every value a step names."""
    if isinstance(step, Fill):
        yield step.value
    elif isinstance(step, Copy):
        yield from (step.target, step.source)
    elif isinstance(step, Operator):
        yield from references([*step.arguments, step.keywords])
        yield from (result for result in step.results if result is not None)
    elif isinstance(step, Launch):
        yield from references(list(step.arguments))


def references(node: Any) -> Iterator[int]:
    """Values named anywhere in a JSON tree (descriptors included)."""
    if isinstance(node, dict):
        if isinstance(node.get("value"), int):
            yield node["value"]
        for item in node.values():
            yield from references(item)
    elif isinstance(node, list | tuple):
        for item in node:
            yield from references(item)
