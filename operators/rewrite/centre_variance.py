"""Computes a variance from deviations instead of from the difference of two large numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst

from operators.edits import edited, expression, without_comments
from operators.rewrite.accesses import calls_of, expression_of, reads, writes
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.beyond import counts, is_zero, zero_beyond
from operators.rewrite.row_sums import RowSum, given, home, row_sum, squared
from operators.source import Kernel, NotApplicableError, Source, called, code, find

EFFECTS = ("store", "debug_barrier", "device_assert", "device_print", "static_print")


class CentreVariance(Rewrite):
    """`tl.sum(x * x) / n - mean * mean` becomes the sum of `(x - mean)²` divided by `n`.

    For a tile that holds a whole row the second pass is over registers: the reduction of squares becomes one of deviations, which waits
    for the mean. Where a loop adds up a row in blocks, its squares get a loop of their own behind the mean, which finds the row in the
    cache; `welford` makes one of such loops. Rows with a large mean keep their variance.
    """

    name = "centre_variance"
    exact = False
    when = "Norms whose rows have means that are large beside their deviations: exactness for little memory traffic."
    cites = "Chan, Golub and LeVeque, Algorithms for computing the sample variance (1983), the two-pass algorithm."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per difference of something and a squared name."""
        for kernel in source.kernels.values():
            for node in find(kernel.node.body, cst.BinaryOperation):
                mean = squared(expression_of(node.right)) if isinstance(node.operator, cst.Subtract) else None
                if isinstance(mean, ast.Name):
                    strategy = f"{kernel.name} sums squared deviations from {mean.id}"
                    yield Site(strategy, partial(_rewrite, source, kernel, node, mean.id))


def _rewrite(source: Source, kernel: Kernel, node: cst.BinaryOperation, mean: str) -> cst.Module:
    lines, place = home(kernel.node.body, node)
    first, second = row_sum(lines, place, ast.Name(mean, ast.Load())), row_sum(lines, place, expression_of(node.left))
    if first.scale != second.scale or not first.scale or first.axis != second.axis:
        raise NotApplicableError(f"{kernel.name} does not subtract a squared mean from a mean of as many squares")
    edits: list[tuple[cst.CSTNode, Any]]
    if first.line is None and second.line is None:
        _check_steady(kernel, lines[min(first.place, second.place) : place], first.added)
        deviations = _deviations(kernel, lines, place, (first, second), mean)
        edits = [(node, lambda _: expression(f"{_reduced(deviations, first.axis)} {first.scale}"))]
    elif first.line is not None and second.line is not None and first.place == second.place:
        edits = [*_of_loop(kernel, lines, given(lines, place, mean)[0], (first, second), mean), (node, lambda item: item.left)]
    else:
        raise NotApplicableError(f"{kernel.name} does not sum up a row and its squares alike")
    module = edited(source.module, edits)
    assert isinstance(module, cst.Module)
    return module


def _of_loop(
    kernel: Kernel, lines: list[Any], mean_at: int, sums: tuple[RowSum, RowSum], mean: str
) -> list[tuple[cst.CSTNode, Any]]:
    """A second loop behind the mean, that adds up squared deviations; the first one loses its squares."""
    first, second = sums
    loop: Any = lines[first.place]
    body = list(loop.body.body)
    places = sorted((body.index(first.line), body.index(second.line)))
    _check_steady(kernel, body[places[0] : places[1]], first.added)
    deviations = _deviations(kernel, body, places[1], sums, mean, loop)
    begins = given(lines, first.place, first.total)[1]
    if begins is None or not (is_zero(begins) or called(begins) == "zeros"):
        raise NotApplicableError(f"{first.total} of {kernel.name} does not begin as zero")
    known = frozenset({code(loop.target), first.total, second.total})
    for line in body:
        if not isinstance(line, cst.SimpleStatementLine) or _has_effect(line):
            raise NotApplicableError(f"a loop of {kernel.name} does more than add up")
        augmented = {code(item.target) for item in find(line, cst.AugAssign)}
        if ((reads(line) | augmented) & writes(loop)) - known:
            raise NotApplicableError(f"a loop of {kernel.name} hands more than sums from round to round")
        known |= writes(line)
    for line in lines[first.place + 1 : mean_at + 1]:
        if second.total in reads(line) or writes(line) & (reads(loop) | writes(loop)) or _has_effect(line):
            raise NotApplicableError(f"{kernel.name} does more between its loop and the mean than to compute it")
    text = _reduced(deviations, first.axis) if second.each else deviations
    adding = cst.ensure_type(cst.parse_statement(f"{second.total} += {text}"), cst.SimpleStatementLine)
    adding = second.line.with_changes(body=adding.body)
    again = [adding if line is second.line else without_comments(line) for line in body if line is not first.line]
    other = loop.with_changes(leading_lines=[], body=loop.body.with_changes(body=again, header=cst.TrailingWhitespace()))
    return [(second.line, lambda _: cst.RemoveFromParent()), (lines[mean_at], lambda line: cst.FlattenSentinel([line, other]))]


def _deviations(
    kernel: Kernel, lines: list[Any], place: int, sums: tuple[RowSum, RowSum], mean: str, loop: cst.For | None = None
) -> str:
    """The squared deviations of a tile at a statement, zero where the tile is."""
    tile, squares = sums[0].added, sums[1].added
    if isinstance(squares, ast.Name):
        squares = given(lines, place, squares.id)[1] or squares
    root = squared(squares)
    if root is None or ast.dump(root) != ast.dump(tile) or any(called(node) == "load" for node in ast.walk(tile)):
        raise NotApplicableError(f"{ast.unparse(squares)} is not the square of {ast.unparse(tile)}")
    mask = zero_beyond(lines, place, tile)
    if not counts(kernel, mask, sums[0].scale, loop):
        raise NotApplicableError(f"{kernel.name} does not divide by the number of elements that {mask or 'no mask'} leaves")
    deviation = f"({ast.unparse(tile)} - {mean})"
    return f"tl.where({mask}, {deviation} * {deviation}, 0.0)"


def _reduced(tile: str, axis: str) -> str:
    return f"tl.sum({tile}, axis={axis})" if axis else f"tl.sum({tile})"


def _check_steady(kernel: Kernel, lines: list[Any], tile: ast.expr) -> None:
    names = {item.id for item in ast.walk(tile) if isinstance(item, ast.Name)}
    if any(names & writes(line) for line in lines):
        raise NotApplicableError(f"the row of {kernel.name} changes before its variance is computed")


def _has_effect(line: cst.CSTNode) -> bool:
    return bool(calls_of(line, *EFFECTS)) or "atomic" in code(line)
