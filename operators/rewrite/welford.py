"""Computes a row's mean and variance in one pass over memory instead of two."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, instead, unused
from operators.rewrite.accesses import positional, tree_of, writes
from operators.rewrite.base import Rewrite, Site
from operators.source import Kernel, NotApplicableError, Source, argument, called, code, find


@dataclass(frozen=True)
class _Pass:
    """A loop over blocks of a row that adds a tile to a float32 tile in each round.

    Attributes:
        loop, line: The loop, and its statement that adds.
        total: What it adds to.
        added: What it adds.
        known: Name → what the body assigns to it.
    """

    loop: cst.For
    line: Any
    total: str
    added: ast.expr
    known: dict[str, ast.expr]


class Welford(Rewrite):
    """Two loops, for a mean and for squares around it, become one in which every lane keeps the mean and squares of its elements.

    Each lane follows Welford; lanes are put together after the loop with how many elements each had, as Chan, Golub and LeVeque do. Rows
    are loaded once less, and sums are as exact as with two passes.
    """

    name = "welford"
    exact = False
    when = "Norms of rows that do not fit in registers: layer, group and batch norm over long rows."
    cites = "Welford (Technometrics 1962); Chan, Golub and LeVeque, Algorithms for computing the sample variance (1983)."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per two loops over the same blocks."""
        for kernel in source.kernels.values():
            loops = [line for line in kernel.node.body.body if isinstance(line, cst.For)]
            for first, second in pairwise(loops):
                strategy = f"{kernel.name} computes mean and variance in one loop over {code(first.target)}"
                yield Site(strategy, partial(_rewrite, source, kernel, first, second))


def _rewrite(source: Source, kernel: Kernel, first: cst.For, second: cst.For) -> cst.Module:
    if code(first.iter) != code(second.iter) or code(first.target) != code(second.target):
        raise NotApplicableError(f"two loops of {kernel.name} do not go over the same blocks")
    bound, block = _range(kernel, first)
    mean, squares = _pass(kernel, first), _pass(kernel, second)
    centre, condition = _centred(kernel, squares, mean)
    start = code(first.target)
    means, rests, step, counts = (
        unused(name, source.names) for name in ("lane_means", "lane_squares", "deviation", "lane_counts")
    )
    value = ast.unparse(mean.added)
    inside = [
        f"{step} = {value} - {means}",
        f"{means} += tl.where({condition}, {step} / ({start} // {block} + 1), 0.0)",
        f"{rests} += tl.where({condition}, {step} * ({value} - {means}), 0.0)",
    ]
    after = [f"{counts} = ((({bound} - tl.arange(0, {block})) + {block} - 1) // {block}).to(tl.float32)"]
    zeros = f"tl.zeros([{block}], dtype=tl.float32)"
    edits: list[tuple[cst.CSTNode, Any]] = [
        (mean.line, _lines(inside)),
        (first, lambda loop: cst.FlattenSentinel([loop, *map(cst.parse_statement, after)])),
        (_reduction(kernel, mean.total), instead(f"tl.sum({means} * {counts}, axis=0)")),
        (_reduction(kernel, squares.total), instead(f"tl.sum({rests} + {counts} * {step} * {step}, axis=0)")),
        (second, lambda loop: _statement(f"{step} = {means} - {centre}").with_changes(leading_lines=loop.leading_lines)),
        (_initial(kernel, mean.total), _lines([f"{means} = {zeros}", f"{rests} = {zeros}"])),
        (_initial(kernel, squares.total), lambda line: cst.RemoveFromParent()),
    ]
    _check_uses(kernel, mean, squares)
    module = edited(source.module, edits)
    assert isinstance(module, cst.Module)
    if any(node.value not in module.code for node in find(source.module, cst.Comment)):
        raise NotApplicableError(f"a comment of the second loop of {kernel.name} would be lost")
    return module


def _statement(text: str) -> cst.SimpleStatementLine:
    return cst.ensure_type(cst.parse_statement(text), cst.SimpleStatementLine)


def _lines(texts: list[str]) -> Any:
    def edit(line: Any) -> Any:
        new = [_statement(text) for text in texts]
        new[0] = new[0].with_changes(leading_lines=line.leading_lines)
        new[-1] = new[-1].with_changes(trailing_whitespace=line.trailing_whitespace)
        return cst.FlattenSentinel(new)

    return edit


def _range(kernel: Kernel, loop: cst.For) -> tuple[str, str]:
    given = [code(item) for item in positional(cst.ensure_type(loop.iter, cst.Call))] if isinstance(loop.iter, cst.Call) else []
    if len(given) != 3 or given[0] != "0" or given[1] not in kernel.parameters or given[2] not in kernel.constexprs:
        raise NotApplicableError(f"a loop of {kernel.name} does not go from 0 over blocks of a parameter")
    return given[1], given[2]


def _pass(kernel: Kernel, loop: cst.For) -> _Pass:
    block: Any = loop.body
    known: dict[str, ast.expr] = {}
    found: _Pass | None = None
    for line in block.body:
        tree: Any = tree_of(line).body
        if len(tree) != 1 or not isinstance(tree[0], ast.Assign | ast.AugAssign):
            raise NotApplicableError(f"a loop of {kernel.name} does more than add up")
        tree = tree[0]
        target = ast.unparse(tree.target if isinstance(tree, ast.AugAssign) else tree.targets[0])
        plus = isinstance(tree.value, ast.BinOp) and isinstance(tree.value.op, ast.Add) and ast.unparse(tree.value.left) == target
        if isinstance(tree, ast.AugAssign) or plus:
            added = tree.value if isinstance(tree, ast.AugAssign) else tree.value.right
            if found is not None or (isinstance(tree, ast.AugAssign) and not isinstance(tree.op, ast.Add)):
                raise NotApplicableError(f"a loop of {kernel.name} adds up more than one value")
            found = _Pass(loop, line, target, added, known)
        else:
            earlier = {target: known[target]} if target in known else {}
            known[target] = _Inliner(earlier).visit(copy.deepcopy(tree.value))
    if found is None or called(found.added) == "sum":
        raise NotApplicableError(f"a loop of {kernel.name} adds no tile to a tile: defer_reductions makes it so")
    return found


class _Inliner(ast.NodeTransformer):
    def __init__(self, known: dict[str, ast.expr]) -> None:
        self._known = known

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self._known:
            return node
        rest = {name: value for name, value in self._known.items() if name != node.id}  # x = x.to(…) reads the x before
        result: ast.expr = _Inliner(rest).visit(copy.deepcopy(self._known[node.id]))
        return result


def _inlined(node: ast.expr, known: dict[str, ast.expr]) -> str:
    return ast.unparse(_Inliner(known).visit(copy.deepcopy(node)))


def _centred(kernel: Kernel, squares: _Pass, mean: _Pass) -> tuple[str, str]:
    """The mean and the condition of `tl.where(condition, x - mean, 0.0)`, whose square the second loop adds, for the x of the first."""
    added: Any = squares.added
    base = added.left if isinstance(added, ast.BinOp) and isinstance(added.op, ast.Mult | ast.Pow) else None
    twice = base is not None and (
        ast.unparse(added.left) == ast.unparse(added.right) or (isinstance(added.op, ast.Pow) and ast.unparse(added.right) == "2")
    )
    choice: Any = squares.known.get(base.id, base) if isinstance(base, ast.Name) else base
    if not twice or called(choice) != "where" or ast.unparse(choice.args[2]) not in ("0.0", "0"):
        raise NotApplicableError(f"the second loop of {kernel.name} does not add squares of tl.where(…, x - mean, 0.0)")
    difference = choice.args[1]
    centre = difference.right if isinstance(difference, ast.BinOp) and isinstance(difference.op, ast.Sub) else None
    if not isinstance(centre, ast.Name) or centre.id in squares.known:
        raise NotApplicableError(f"the second loop of {kernel.name} does not subtract a mean")
    if _inlined(difference.left, squares.known) != _inlined(mean.added, mean.known):
        raise NotApplicableError(f"the loops of {kernel.name} do not add up the same values")
    given = [n.value for n in ast.walk(kernel.tree) if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == centre.id]
    reduced = f"tl.sum({mean.total}"
    bound = positional(cst.ensure_type(mean.loop.iter, cst.Call))[1]
    quotient = given[0] if len(given) == 1 else None
    if not isinstance(quotient, ast.BinOp) or not isinstance(quotient.op, ast.Div) or ast.unparse(quotient.right) != code(bound):
        raise NotApplicableError(f"{centre.id} of {kernel.name} is not a sum divided by the length of the row")
    if not ast.unparse(quotient.left).startswith(reduced) or argument(quotient.left, 0, "input") is None:  # type: ignore[arg-type]
        raise NotApplicableError(f"{centre.id} of {kernel.name} is not the mean of the first loop")
    return centre.id, _inlined(choice.args[0], squares.known)


def _reduction(kernel: Kernel, total: str) -> cst.Call:
    pattern = m.Call(func=m.Attribute(m.Name("tl"), m.Name("sum")), args=[m.Arg(m.Name(total)), m.ZeroOrMore()])
    calls = find(kernel.node.body, cst.Call, pattern)
    if len(calls) != 1:
        raise NotApplicableError(f"{total} of {kernel.name} is not reduced once")
    return calls[0]


def _initial(kernel: Kernel, total: str) -> Any:
    lines = [line for line in kernel.node.body.body if isinstance(line, cst.SimpleStatementLine) and total in writes(line)]
    tree: Any = tree_of(lines[0]).body[0] if len(lines) == 1 else None
    if not isinstance(tree, ast.Assign) or called(tree.value) != "zeros" or "float32" not in ast.unparse(tree.value):
        raise NotApplicableError(f"{total} of {kernel.name} does not begin as float32 zeros")
    return lines[0]


def _check_uses(kernel: Kernel, mean: _Pass, squares: _Pass) -> None:
    """Raises NotApplicableError where sums are used elsewhere, or what only the second loop assigned is read later."""
    lines = list(kernel.node.body.body)
    later = lines[lines.index(squares.loop) + 1 :]
    for line in later:
        stale = (set(squares.known) - writes(line)) & {n.id for n in ast.walk(tree_of(line)) if isinstance(n, ast.Name)}
        if stale and not isinstance(line, cst.For):
            raise NotApplicableError(f"{kernel.name} uses after its loop what the last round made")
    for side in (mean, squares):
        changes = 3 if isinstance(tree_of(side.line).body[0], ast.AugAssign) else 4
        if len(find(kernel.node.body, cst.Name, m.Name(side.total))) != changes:
            raise NotApplicableError(f"{side.total} of {kernel.name} is used besides its sum")
