"""Loads once what straight-line code loads twice."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, instead
from operators.rewrite.accesses import calls_of, expression_of, keyword, reads, tree_of, writes
from operators.rewrite.aliases import apart
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.memory import bases
from operators.source import Kernel, NotApplicableError, Source, called, find

NAMED = m.SimpleStatementLine(
    [m.Assign(targets=[m.AssignTarget(m.Name())], value=m.Call(m.Attribute(m.Name("tl"), m.Name("load"))))]
)


class ReuseLoads(Rewrite):
    """A `tl.load` that reads like an earlier one in the same block takes the earlier one's value.

    Nothing may have been stored between them, but through pointers to other tensors, and no name in them assigned to. The value stays
    in registers instead.
    """

    name = "reuse_loads"
    when = "Code was composed of parts that each load what they need; compilers keep loads across stores and barriers."
    cites = "Common subexpression elimination (Aho, Lam, Sethi, Ullman, Compilers, section 9.1)."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per kernel."""
        found = [(kernel, repeats) for kernel in source.kernels.values() if (repeats := _repeats(source, kernel))]
        if not found:
            raise NotApplicableError("no kernel repeats a load in straight-line code")
        for kernel, repeats in found:
            yield Site(f"{kernel.name} loads each place once", partial(_rewrite, source, repeats))


def _rewrite(source: Source, repeats: list[tuple[cst.Call, str]]) -> cst.Module:
    module = edited(source.module, [(call, instead(name)) for call, name in repeats])
    assert isinstance(module, cst.Module)
    return module


def _repeats(source: Source, kernel: Kernel) -> list[tuple[cst.Call, str]]:
    found: list[tuple[cst.Call, str]] = []
    by_text = {ast.dump(call): base for call, base in bases(kernel).items()}

    def kept(text: str, tree: ast.AST) -> bool:
        """Whether what was loaded is still what is there after a statement."""
        stored = {by_text.get(ast.dump(node), "") for node in ast.walk(tree) if _writes_memory(node)}
        return not stored or apart(source, kernel, stored, {by_text.get(text, "")})

    for block in find(kernel.node.body, cst.IndentedBlock):
        found += _in_block(block, kept)
    return found


def _writes_memory(node: ast.AST) -> bool:
    return called(node) == "store" or called(node).startswith("atomic")


def _in_block(block: cst.IndentedBlock, kept: Callable[[str, ast.AST], bool]) -> list[tuple[cst.Call, str]]:
    found: list[tuple[cst.Call, str]] = []
    known: dict[str, tuple[str, frozenset[str]]] = {}
    lines: list[Any] = list(block.body)
    for line in lines:
        tree = tree_of(line)
        simple = isinstance(line, cst.SimpleStatementLine)
        for call in calls_of(line, "load") if simple else []:
            name, _ = known.get(_text(call), ("", frozenset()))
            if name:
                found.append((call, name))
        written = writes(line)
        if any(called(node).startswith("debug") for node in ast.walk(tree)) or _calls_others(tree):
            known = {}
        known = {text: item for text, item in known.items() if kept(text, tree)}
        known = {text: (name, used) for text, (name, used) in known.items() if not written & (used | {name})}
        if m.matches(line, NAMED) and not written & reads(line):
            call = calls_of(line, "load")[0]
            if keyword(call, "volatile") is None:
                known.setdefault(_text(call), (next(iter(written)), reads(line)))
    return found


def _calls_others(tree: ast.AST) -> bool:
    """Whether functions are called that may store."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return any(node.func.id not in ("min", "max", "range", "float", "abs") for node in calls if isinstance(node.func, ast.Name))


def _text(call: cst.Call) -> str:
    return ast.dump(expression_of(call))
