"""Tells which accesses of a kernel touch memory that one program alone touches, once, and which all programs share."""

from __future__ import annotations

import ast

import libcst as cst

from operators.rewrite.accesses import axis_of, calls_of, derived, expression_of, keyword, positional, reads
from operators.rewrite.memory import bases
from operators.source import Kernel, code, find

HINTS = ("cache_modifier", "eviction_policy")


def read_once(kernel: Kernel) -> list[cst.Call]:
    """Loads without hints, at places that depend on all axes of the grid the kernel uses, through pointers that are loaded once."""
    used = _axes(kernel)
    counts = list(bases(kernel).values())
    through = _through(kernel)
    return [
        call
        for call in _unhinted(kernel, "load")
        if used
        and _axes_of(call, used) == set(used)
        and counts.count(through.get(code(call), "")) == 1
        and through.get(code(call))
    ]


def shared(kernel: Kernel) -> list[cst.Call]:
    """Loads without hints at places that no axis of the grid moves."""
    used = _axes(kernel)
    return [call for call in _unhinted(kernel, "load") if used and not _axes_of(call, used)]


def written(kernel: Kernel) -> list[cst.Call]:
    """Stores without hints, through pointers that the kernel does not load."""
    loaded = {base for call, base in bases(kernel).items() if isinstance(call.func, ast.Attribute) and call.func.attr != "store"}
    through = _through(kernel)
    return [call for call in _unhinted(kernel, "store") if through.get(code(call)) and not {"", through[code(call)]} & loaded]


def _through(kernel: Kernel) -> dict[str, str]:
    """Text of an access → the parameter it goes through; equal texts that differ in it are left out."""
    found: dict[str, str] = {}
    by_text = {ast.unparse(call): base for call, base in bases(kernel).items()}
    for call in calls_of(kernel.node.body, "load", "store"):
        found[code(call)] = by_text.get(ast.unparse(expression_of(call)), "")
    return found


def _unhinted(kernel: Kernel, name: str) -> list[cst.Call]:
    calls = calls_of(kernel.node.body, name)
    return [call for call in calls if all(keyword(call, hint) is None for hint in (*HINTS, "volatile")) and positional(call)]


def _axes(kernel: Kernel) -> dict[int, frozenset[str]]:
    """Axis → names that depend on a program's place on it."""
    roots: dict[int, set[str]] = {}
    for line in find(kernel.node.body, cst.Assign):
        for call in calls_of(line.value, "program_id"):
            roots.setdefault(axis_of(call), set()).update(code(target.target).strip() for target in line.targets)
    for call in calls_of(kernel.node.body, "program_id"):
        roots.setdefault(axis_of(call), set())
    return {axis: derived(kernel, names) for axis, names in roots.items()}


def _axes_of(call: cst.Call, used: dict[int, frozenset[str]]) -> set[int]:
    pointer = positional(call)[0]
    direct = {axis_of(item) for item in calls_of(pointer, "program_id")}
    return direct | {axis for axis, names in used.items() if reads(pointer) & names}
