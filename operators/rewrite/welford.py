"""Computes a row's mean and variance in one pass over memory instead of two."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import libcst as cst

from evo.syntax import expression_tree
from operators.edits import edited, instead, unused
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.beyond import Rounds, counts, is_zero, rounds, zero_beyond
from operators.rewrite.row_passes import RowPass, check_uses, initial_of, inlined_in, reduction_of, row_pass
from operators.rewrite.row_sums import squared
from operators.source import Kernel, NotApplicableError, Source, argument, called, code, find


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
    mean, squares = row_pass(kernel, first), row_pass(kernel, second)
    centre, condition, row = _centred(kernel, squares, mean)
    block, bound = row.block, row.bound if row.bound.isidentifier() else f"({row.bound})"
    means, rests, step, lanes = (
        unused(name, source.names) for name in ("lane_means", "lane_squares", "deviation", "lane_counts")
    )
    value = ast.unparse(mean.added)
    inside = [
        f"{step} = {value} - {means}",
        f"{means} += tl.where({condition}, {step} / ({row.number}), 0.0)",
        f"{rests} += tl.where({condition}, {step} * ({value} - {means}), 0.0)",
    ]
    after = [f"{lanes} = ((({bound} - tl.arange(0, {block})) + {block} - 1) // {block}).to(tl.float32)"]
    zeros = f"tl.zeros([{block}], dtype=tl.float32)"
    edits: list[tuple[cst.CSTNode, Any]] = [
        (mean.line, _lines(inside)),
        (first, lambda loop: cst.FlattenSentinel([loop, *map(cst.parse_statement, after)])),
        (reduction_of(kernel, mean.total), instead(f"tl.sum({means} * {lanes}, axis=0)")),
        (reduction_of(kernel, squares.total), instead(f"tl.sum({rests} + {lanes} * {step} * {step}, axis=0)")),
        (second, lambda loop: _statement(f"{step} = {means} - {centre}").with_changes(leading_lines=loop.leading_lines)),
        (initial_of(kernel, mean.total), _lines([f"{means} = {zeros}", f"{rests} = {zeros}"])),
        (initial_of(kernel, squares.total), lambda line: cst.RemoveFromParent()),
    ]
    check_uses(kernel, mean, squares)
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


def _centred(kernel: Kernel, squares: RowPass, mean: RowPass) -> tuple[str, str, Rounds]:
    """The mean and the condition of `tl.where(condition, x - mean, 0.0)`, whose square the second loop adds, for the x of the first."""
    added: Any = squares.known.get(squares.added.id) if isinstance(squares.added, ast.Name) else squares.added
    root = squared(added.args[1]) if called(added) == "where" else None
    if root is not None:  # the condition stands around the square
        choice: Any = ast.Call(added.func, [added.args[0], root, *added.args[2:]], [])
    else:
        choice = None if added is None else squared(added)
    while isinstance(choice, ast.Name):
        choice = squares.known.get(choice.id)
    if called(choice) != "where" or len(choice.args) != 3 or ast.unparse(choice.args[2]) not in ("0.0", "0"):
        raise NotApplicableError(f"the second loop of {kernel.name} does not add squares of tl.where(…, x - mean, 0.0)")
    difference: Any = squares.known.get(choice.args[1].id) if isinstance(choice.args[1], ast.Name) else choice.args[1]
    centre = difference.right if isinstance(difference, ast.BinOp) and isinstance(difference.op, ast.Sub) else None
    if not isinstance(centre, ast.Name) or centre.id in squares.known:
        raise NotApplicableError(f"the second loop of {kernel.name} does not subtract a mean")
    if inlined_in(difference.left, squares.known) != inlined_in(mean.added, mean.known):
        raise NotApplicableError(f"the loops of {kernel.name} do not add up the same values")
    given = [n.value for n in ast.walk(kernel.tree) if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == centre.id]
    condition = inlined_in(choice.args[0], squares.known)
    row = rounds(kernel, condition, squares.loop)
    if row is None:
        raise NotApplicableError(f"the loops of {kernel.name} do not go over a row from 0 to where {condition} ends it")
    beginnings = [item for item in given[:-1] if not isinstance(item, ast.Constant)]  # `mean = 0`, which the quotient replaces
    quotient = given[-1] if given and not beginnings else None
    if not isinstance(quotient, ast.BinOp) or not isinstance(quotient.op, ast.Div | ast.Mult):
        raise NotApplicableError(f"{centre.id} of {kernel.name} is not a sum divided by the length of the row")
    scale = f"{'/' if isinstance(quotient.op, ast.Div) else '*'} {ast.unparse(quotient.right)}"
    if not counts(kernel, condition, scale, squares.loop):
        raise NotApplicableError(f"{centre.id} of {kernel.name} is not a sum divided by the length of the row")
    if not _is_total(kernel, quotient.left, mean.total):
        raise NotApplicableError(f"{centre.id} of {kernel.name} is not the mean of the first loop")
    lines = list(mean.loop.body.body)
    beyond = zero_beyond(lines, lines.index(mean.line), mean.added)
    if inlined_in(expression_tree(beyond or "None"), mean.known) != condition:
        raise NotApplicableError(f"the first loop of {kernel.name} adds up what the second leaves out")
    return centre.id, condition, row


def _is_total(kernel: Kernel, node: ast.expr, total: str) -> bool:
    """Whether an expression is `tl.sum(total)`, or a name that began as zero to which that was added."""
    if isinstance(node, ast.Name):
        values = [n.value for n in ast.walk(kernel.tree) if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == node.id]
        grown = values[-1] if len(values) == 2 and (is_zero(values[0]) or called(values[0]) == "zeros") else None
        plus = isinstance(grown, ast.BinOp) and isinstance(grown.op, ast.Add) and ast.unparse(grown.left) == node.id
        return plus and isinstance(grown, ast.BinOp) and _is_total(kernel, grown.right, total)
    return called(node) == "sum" and ast.unparse(argument(node, 0, "input") or node) == total  # type: ignore[arg-type]
