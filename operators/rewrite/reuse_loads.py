"""Loads once what straight-line code loads twice."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, instead
from operators.rewrite.accesses import calls_of, expression_of, keyword, reads, tree_of, writes
from operators.rewrite.aliases import apart
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.memory import bases
from operators.rewrite.wording import Wording
from operators.source import Kernel, NotApplicableError, Source, called, code, find

LOAD = m.Call(func=m.Attribute(m.Name("tl"), m.Name("load")))
VALUE = LOAD | m.Call(func=m.Attribute(value=LOAD, attr=m.Name("to")))
"""A load, or one that is cast at once."""
NAMED = m.SimpleStatementLine([m.Assign(targets=[m.AssignTarget(m.Name())], value=VALUE)])


class ReuseLoads(Rewrite):
    """A `tl.load` that reads like an earlier one, perhaps under other names, takes the earlier one's value, cast or not.

    The earlier one stands in the same block, or before the branch that the later one stands in. Nothing may have been stored between
    them, but through pointers to other tensors, and no name in them assigned to. The value stays in registers instead.
    """

    name = "reuse_loads"
    when = "Code was composed of parts that each load what they need; compilers keep loads across stores and barriers."
    cites = "Common subexpression elimination (Aho, Lam, Sethi, Ullman, Compilers, section 9.1)."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per kernel."""
        language = _of_language(source)
        found = [(kernel, repeats) for kernel in source.kernels.values() if (repeats := _repeats(source, kernel, language))]
        if not found:
            raise NotApplicableError("no kernel repeats a load in straight-line code")
        for kernel, repeats in found:
            yield Site(f"{kernel.name} loads each place once", partial(_rewrite, source, repeats))


def _rewrite(source: Source, repeats: list[tuple[cst.Call, str]]) -> cst.Module:
    module = edited(source.module, [(call, instead(name)) for call, name in repeats])
    assert isinstance(module, cst.Module)
    return module


@dataclass(frozen=True)
class _Known:
    """A value that was loaded: its name, the names that its place depends on, and the parameter it was loaded through."""

    name: str
    used: frozenset[str]
    base: str


def _repeats(source: Source, kernel: Kernel, language: frozenset[str]) -> list[tuple[cst.Call, str]]:
    if len(calls_of(kernel.node.body, "load")) < 2:
        return []
    found: list[tuple[cst.Call, str]] = []
    by_text = {ast.dump(call): base for call, base in bases(kernel).items()}
    wording = Wording(kernel)

    def base_of(node: ast.AST) -> str:
        return by_text.get(ast.dump(node), "")

    def kept(item: _Known, stored: set[str]) -> bool:
        """Whether what was loaded is still what is there after a statement."""
        return not stored or apart(source, kernel, stored, {item.base})

    def read(block: Any, known: dict[str, _Known], outside: frozenset[str]) -> None:
        """Follows a block; `outside` is assigned to behind it."""
        lines: list[Any] = list(block.body)
        below = [outside]  # a name that is assigned below has an older value here
        for line in reversed(lines):
            below.append(below[-1] | writes(line))
        for line, later, after in zip(lines, below[::-1], below[-2::-1], strict=False):
            tree, written = tree_of(line), writes(line)
            values = find(line, cst.Call, VALUE) if isinstance(line, cst.SimpleStatementLine) else []
            taken: set[int] = set()
            for value in values:
                text, _ = wording.of(expression_of(value), later)
                if text in known and id(value) not in taken:
                    taken |= {id(item) for item in find(value, cst.Call)}
                    found.append((value, known[text].name))
            branch: Any = line
            while isinstance(branch, cst.If | cst.Else):
                read(branch.body, dict(known), after)
                branch = branch.orelse if isinstance(branch, cst.If) else None
            if isinstance(line, cst.For | cst.While):
                read(line.body, {}, later)
            stored = {base_of(node) for node in ast.walk(tree) if _writes_memory(node)}
            if any(called(node).startswith("debug") for node in ast.walk(tree)) or _calls_others(source, tree, language):
                known.clear()
            for text in [text for text, item in known.items() if not kept(item, stored) or written & (item.used | {item.name})]:
                del known[text]
            if m.matches(line, NAMED) and not written & reads(line):
                text, used = wording.of(expression_of(values[0]), later)
                load = next(call for call in values if m.matches(call, LOAD))
                if keyword(load, "volatile") is None:
                    known.setdefault(text, _Known(next(iter(written)), used, base_of(expression_of(load))))

    read(kernel.node.body, {}, frozenset())
    return found


def _writes_memory(node: ast.AST) -> bool:
    return called(node) == "store" or called(node).startswith("atomic")


def _calls_others(source: Source, tree: ast.AST, language: frozenset[str]) -> bool:
    """Whether functions are called that may store: all but Python's, the language's own, and kernels that do not."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    names = {node.func.id for node in calls if isinstance(node.func, ast.Name)} - {"min", "max", "range", "float", "abs"}
    for name in names - language:
        kernel = source.kernels.get(name)
        if (
            kernel is None
            or any(map(_writes_memory, ast.walk(kernel.tree)))
            or _calls_others(_without(source, name), kernel.tree, language)
        ):
            return True
    return False


def _of_language(source: Source) -> frozenset[str]:
    """Names imported from `triton.language`, whose functions compute."""
    lines = [
        item for item in find(source.module, cst.ImportFrom) if item.module and code(item.module).startswith("triton.language")
    ]
    return frozenset(
        node.value
        for line in lines
        if not isinstance(line.names, cst.ImportStar)
        for item in line.names
        for node in find(item, cst.Name)
    )


def _without(source: Source, name: str) -> Source:
    return dataclasses.replace(source, kernels={key: kernel for key, kernel in source.kernels.items() if key != name})
