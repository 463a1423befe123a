"""Reads the calls of a kernel that rewrites look for: its place in the grid, loads and stores, loops."""

from __future__ import annotations

import ast
from collections.abc import Iterable

import libcst as cst
import libcst.matchers as m

from evo.syntax import expression_tree, module_tree
from operators.source import Kernel, NotApplicableError, Source, code, find


def calls_of(root: cst.CSTNode, *names: str) -> list[cst.Call]:
    """Every call of `tl.NAME`."""
    return [call for name in names for call in find(root, cst.Call, m.Call(func=m.Attribute(m.Name("tl"), m.Name(name))))]


def keyword(call: cst.Call, name: str) -> cst.BaseExpression | None:
    """An argument given by keyword."""
    return next((item.value for item in call.args if item.keyword is not None and item.keyword.value == name), None)


def positional(call: cst.Call) -> list[cst.BaseExpression]:
    """The arguments given by position."""
    return [item.value for item in call.args if item.keyword is None and not item.star]


def tree_of(node: cst.CSTNode) -> ast.Module:
    """A statement, expression or block, to analyse."""
    if isinstance(node, cst.BaseExpression):
        return ast.Module([ast.Expr(expression_of(node))], [])
    text = code(node)
    return module_tree("if True:" + text if isinstance(node, cst.IndentedBlock) else text.strip())


def expression_of(node: cst.CSTNode) -> ast.expr:
    """An expression, to analyse; it may be part of one that spans several lines."""
    return expression_tree(f"({code(node).strip()}\n)")


def reads(node: cst.CSTNode) -> frozenset[str]:
    """Names that are read."""
    return _names(node, ast.Load)


def writes(node: cst.CSTNode) -> frozenset[str]:
    """Names that are assigned to."""
    return _names(node, ast.Store)


def _names(node: cst.CSTNode, context: type[ast.expr_context]) -> frozenset[str]:
    return frozenset(n.id for n in ast.walk(tree_of(node)) if isinstance(n, ast.Name) and isinstance(n.ctx, context))


def times_written(kernel: Kernel, name: str) -> int:
    """How often a name is assigned to; parameters once more."""
    stores = [n for n in ast.walk(kernel.tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return sum(n.id == name for n in stores) + (name in kernel.parameters)


def axis_of(call: cst.Call) -> int:
    """The grid axis of a `tl.program_id` or `tl.num_programs`; raises NotApplicableError where it is no literal."""
    given = positional(call)[:1] or [item for item in [keyword(call, "axis")] if item is not None]
    text = code(given[0]).strip() if given else "0"
    if text not in ("0", "1", "2"):
        raise NotApplicableError(f"the grid axis {text} is no literal")
    return int(text)


def places(source: Source, kernel: Kernel) -> dict[int, list[cst.Call]]:
    """Axis → the calls that ask for a program's place on it; raises NotApplicableError where functions it calls ask themselves."""
    helpers: set[str] = set()
    for _ in source.kernels:  # each round reaches one call deeper
        trees = [kernel.tree, *(source.kernels[name].tree for name in helpers)]
        helpers |= {n.id for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Name)} & set(source.kernels)
    if any({"program_id", "num_programs"} & source.kernels[name].uses for name in helpers):
        raise NotApplicableError(f"{kernel.name} calls functions that ask for their place in the grid")
    found: dict[int, list[cst.Call]] = {}
    for call in calls_of(kernel.node.body, "program_id"):
        found.setdefault(axis_of(call), []).append(call)
    return found


def loops(kernel: Kernel) -> list[cst.For]:
    """All loops over `range` or `tl.range`, outer ones first."""
    iterated = m.Call(func=m.Name("range") | m.Attribute(m.Name("tl"), m.Name("range")))
    return find(kernel.node.body, cst.For, m.For(target=m.Name(), iter=iterated))


def derived(kernel: Kernel, roots: Iterable[str]) -> frozenset[str]:
    """The names that depend on others, wherever they are assigned; roots included."""
    found, known = set(roots), -1
    lines = [n for n in ast.walk(kernel.tree) if isinstance(n, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.For)]
    while known != len(found):
        known = len(found)
        for line in lines:
            parts = [line.target, line.iter] if isinstance(line, ast.For) else [line]
            names = [n for part in parts for n in ast.walk(part) if isinstance(n, ast.Name)]
            if any(n.id in found for n in names):
                found |= {n.id for n in names if isinstance(n.ctx, ast.Store)}
    return frozenset(found)
