"""Computes a row's mean and variance in one pass over memory instead of two."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import libcst as cst

from operators.edits import edited, instead, unused
from operators.rewrite.accesses import positional
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.row_passes import RowPass, check_uses, initial_of, inlined_in, reduction_of, row_pass, row_range
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
    bound, block = row_range(kernel, first)
    mean, squares = row_pass(kernel, first), row_pass(kernel, second)
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
        (reduction_of(kernel, mean.total), instead(f"tl.sum({means} * {counts}, axis=0)")),
        (reduction_of(kernel, squares.total), instead(f"tl.sum({rests} + {counts} * {step} * {step}, axis=0)")),
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


def _centred(kernel: Kernel, squares: RowPass, mean: RowPass) -> tuple[str, str]:
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
    if inlined_in(difference.left, squares.known) != inlined_in(mean.added, mean.known):
        raise NotApplicableError(f"the loops of {kernel.name} do not add up the same values")
    given = [n.value for n in ast.walk(kernel.tree) if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == centre.id]
    reduced = f"tl.sum({mean.total}"
    bound = positional(cst.ensure_type(mean.loop.iter, cst.Call))[1]
    beginnings = [item for item in given[:-1] if not isinstance(item, ast.Constant)]  # `mean = 0`, which the quotient replaces
    quotient = given[-1] if given and not beginnings else None
    if not isinstance(quotient, ast.BinOp) or not isinstance(quotient.op, ast.Div) or ast.unparse(quotient.right) != code(bound):
        raise NotApplicableError(f"{centre.id} of {kernel.name} is not a sum divided by the length of the row")
    if not ast.unparse(quotient.left).startswith(reduced) or argument(quotient.left, 0, "input") is None:  # type: ignore[arg-type]
        raise NotApplicableError(f"{centre.id} of {kernel.name} is not the mean of the first loop")
    return centre.id, inlined_in(choice.args[0], squares.known)
