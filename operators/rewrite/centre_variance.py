"""Computes a variance from deviations instead of from the difference of two large numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, expression
from operators.rewrite.accesses import expression_of
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.guards import Definitions
from operators.rewrite.values import Values
from operators.source import Kernel, NotApplicableError, Source, argument, called, find


class CentreVariance(Rewrite):
    """`tl.sum(x * x) / n - mean * mean` becomes the sum of `(x - mean)²` divided by `n`: the second pass is over registers.

    For a tile that holds a whole row. The reduction of squares becomes one of deviations, which waits for the mean; nothing is loaded
    again, and rows with a large mean keep their variance. `welford` is what to do where a row is not in registers.
    """

    name = "centre_variance"
    exact = False
    when = "Norms of rows in registers whose means are large beside their deviations: exactness without memory traffic."
    cites = "Chan, Golub and LeVeque, Algorithms for computing the sample variance (1983), the two-pass algorithm."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per difference of something and a squared name."""
        for kernel in source.kernels.values():
            for node in find(kernel.node.body, cst.BinaryOperation, m.BinaryOperation(operator=m.Subtract())):
                mean = _root(expression_of(node.right))
                if mean is not None and isinstance(mean, ast.Name):
                    strategy = f"{kernel.name} sums squared deviations from {mean.id}"
                    yield Site(strategy, partial(_rewrite, source, kernel, node, mean))


def _rewrite(source: Source, kernel: Kernel, node: cst.BinaryOperation, mean: ast.Name) -> cst.Module:
    definitions = Definitions(kernel)
    squares, count = _mean(definitions, expression_of(node.left))
    total, same = _mean(definitions, mean)
    row = None if squares is None else _root(squares)
    if row is None or not isinstance(row, ast.Name) or total is None or ast.dump(total) != ast.dump(row) or count != same:
        raise NotApplicableError(f"{kernel.name} does not subtract a squared mean from the mean of the same row's squares")
    loads = [item for item in Values(kernel).behind(row) if called(item) == "load"]
    if len({ast.dump(item) for item in loads}) != 1:
        raise NotApplicableError(f"what is beyond {row.id} of {kernel.name} is not told by one load")
    assert isinstance(loads[0], ast.Call)
    mask = argument(loads[0], 1, "mask")
    deviation = f"({row.id} - {mean.id})"
    inside = f"{deviation} * {deviation}" if mask is None else f"tl.where({ast.unparse(mask)}, {deviation} * {deviation}, 0.0)"
    module = edited(source.module, [(node, lambda _: expression(f"tl.sum({inside}, axis=0) / {count}"))])
    assert isinstance(module, cst.Module)
    return module


def _root(node: ast.expr) -> ast.expr | None:
    """x for `x * x` and `x ** 2`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and ast.dump(node.left) == ast.dump(node.right):
        return node.left
    power = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and ast.unparse(node.right) in ("2", "2.0")
    return node.left if power and isinstance(node, ast.BinOp) else None


def _mean(definitions: Definitions, node: ast.expr) -> tuple[ast.expr | None, str]:
    """x and n of `tl.sum(x, axis=0) / n`."""
    node = definitions.resolve(node)
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return None, ""
    total = definitions.resolve(node.left)
    axis = argument(total, 1, "axis") if isinstance(total, ast.Call) and called(total) == "sum" else None
    if not isinstance(total, ast.Call) or called(total) != "sum" or (axis is not None and ast.unparse(axis) != "0"):
        return None, ""
    summed = total.args[0] if total.args else None
    if isinstance(summed, ast.Name) and _root(definitions.resolve(summed)) is not None:
        summed = definitions.resolve(summed)
    return summed, ast.unparse(node.right)
