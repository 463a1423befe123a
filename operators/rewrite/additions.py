"""Reads an atomic addition at the end of a kernel: through what it goes, how wide it is, which axis of the grid moves it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

import libcst as cst

from operators.rewrite.accesses import calls_of, derived, expression_of, keyword, places, positional, reads, writes
from operators.rewrite.memory import bases
from operators.rewrite.values import Values
from operators.source import Kernel, NotApplicableError, Source, find

DEFAULT_GROUPS, GROUPS = 1, [1, 4, 16, 64]
ROWS = 64
"""Partial results that the second kernel adds at a time."""


@dataclass(frozen=True)
class Addition:
    """`tl.atomic_add(pointer, value, mask)` at the end of a kernel's straight line.

    Attributes:
        line, call: The statement.
        base: Parameter it goes through.
        extent: Of its one-dimensional tile; empty for a single element.
        axis: The grid axis that its address depends on; None where all programs have the same.
    """

    line: Any
    call: cst.Call
    base: str
    extent: str
    axis: int | None


def addition(source: Source, kernel: Kernel, call: cst.Call) -> Addition:
    """Reads an addition; raises NotApplicableError where it is no statement of a kernel's straight line, or each program adds elsewhere."""
    lines = [line for line in kernel.node.body.body if isinstance(line, cst.SimpleStatementLine)]
    lines = [line for line in lines if len(line.body) == 1 and isinstance(line.body[0], cst.Expr) and line.body[0].value is call]
    if len(lines) != 1 or any(isinstance(node, ast.Return) for node in ast.walk(kernel.tree)):
        raise NotApplicableError(f"{kernel.name} adds atomically in a branch or a loop, or uses the old value")
    text = ast.unparse(expression_of(call))
    base = next((name for node, name in bases(kernel).items() if ast.unparse(node) == text), "")
    if not base or list(bases(kernel).values()).count(base) != 1:
        raise NotApplicableError(f"it is not clear through which pointer {kernel.name} adds, or it uses it elsewhere too")
    given = positional(call)
    if len(given) < 2 or len(given) > 3:
        raise NotApplicableError(f"the atomic addition of {kernel.name} cannot be read")
    values = Values(kernel)
    address, mask = given[0], given[2] if len(given) == 3 else keyword(call, "mask")
    tiled = any("arange" in ast.unparse(node) for node in values.behind(expression_of(address)))
    extent = values.extent(expression_of(address)) if tiled else ""
    moved: list[int] = []
    for axis, asks in places(source, kernel).items():
        roots = {
            name
            for line in find(kernel.node.body, cst.Assign)
            for name in writes(line)
            if any(a in calls_of(line, "program_id") for a in asks)
        }
        used = reads(address) | (reads(mask) if mask is not None else frozenset())
        if used & derived(kernel, roots) or any(a in calls_of(call, "program_id") for a in asks):
            moved.append(axis)
    if {"added", "partials", "first"} & {node.value for node in find(kernel.node, cst.Name)}:
        raise NotApplicableError(f"{kernel.name} uses names that the second kernel needs")
    if len(moved) > 1 or len(moved) == len(places(source, kernel)):
        raise NotApplicableError(f"programs of {kernel.name} add to elements of their own, not to shared ones")
    return Addition(lines[0], call, base, extent, moved[0] if moved else None)
