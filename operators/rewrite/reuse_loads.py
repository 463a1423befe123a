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

NAMED = m.SimpleStatementLine(
    [m.Assign(targets=[m.AssignTarget(m.Name())], value=m.Call(m.Attribute(m.Name("tl"), m.Name("load"))))]
)


class ReuseLoads(Rewrite):
    """A `tl.load` that reads like an earlier one in the same block, perhaps under other names, takes the earlier one's value.

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


@dataclass(frozen=True)
class _Known:
    """A value that was loaded: its name, the names that its place depends on, and the parameter it was loaded through."""

    name: str
    used: frozenset[str]
    base: str


def _repeats(source: Source, kernel: Kernel) -> list[tuple[cst.Call, str]]:
    found: list[tuple[cst.Call, str]] = []
    by_text = {ast.dump(call): base for call, base in bases(kernel).items()}
    wording = Wording(kernel)

    def base_of(node: ast.AST) -> str:
        return by_text.get(ast.dump(node), "")

    def kept(item: _Known, tree: ast.AST) -> bool:
        """Whether what was loaded is still what is there after a statement."""
        stored = {base_of(node) for node in ast.walk(tree) if _writes_memory(node)}
        return not stored or apart(source, kernel, stored, {item.base})

    for block in find(kernel.node.body, cst.IndentedBlock):
        known: dict[str, _Known] = {}
        lines: list[Any] = list(block.body)
        for place, line in enumerate(lines):
            tree, written = tree_of(line), writes(line)
            later = frozenset().union(*map(writes, lines[place:]))  # a name that is assigned below has an older value here
            for call in calls_of(line, "load") if isinstance(line, cst.SimpleStatementLine) else []:
                text, _ = wording.of(expression_of(call), later)
                if text in known:
                    found.append((call, known[text].name))
            if any(called(node).startswith("debug") for node in ast.walk(tree)) or _calls_others(source, tree):
                known = {}
            known = {text: item for text, item in known.items() if kept(item, tree) and not written & (item.used | {item.name})}
            if m.matches(line, NAMED) and not written & reads(line):
                call = calls_of(line, "load")[0]
                text, used = wording.of(expression_of(call), later)
                if keyword(call, "volatile") is None:
                    known.setdefault(text, _Known(next(iter(written)), used, base_of(expression_of(call))))
    return found


def _writes_memory(node: ast.AST) -> bool:
    return called(node) == "store" or called(node).startswith("atomic")


def _calls_others(source: Source, tree: ast.AST) -> bool:
    """Whether functions are called that may store: all but Python's, the language's own, and kernels that do not."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    names = {node.func.id for node in calls if isinstance(node.func, ast.Name)} - {"min", "max", "range", "float", "abs"}
    for name in names - _of_language(source):
        kernel = source.kernels.get(name)
        if (
            kernel is None
            or any(map(_writes_memory, ast.walk(kernel.tree)))
            or _calls_others(_without(source, name), kernel.tree)
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
