"""Divides a tile by a value per row once per row: the reciprocal is taken there, and elements are multiplied."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, expression
from operators.rewrite.accesses import expression_of
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.dataflow import NEUTRAL
from operators.rewrite.guards import Definitions
from operators.source import Kernel, NotApplicableError, Source, called, code, find

QUOTIENT = m.BinaryOperation(operator=m.Divide())


class ReciprocalDivision(Rewrite):
    """`x / tl.sum(x, axis=0)` becomes `x * (1.0 / tl.sum(x, axis=0))`, likewise `acc / total[:, None]`.

    A float32 division takes about eight instructions per element, a product one. Each result is rounded once more, by half a unit in
    the last place, which the tolerance of a task judges; data types stay. A reciprocal is taken of float32 alone: of values that a
    reduction, a zero of type float32 or a cast made so.
    """

    name = "reciprocal_division"
    exact = False
    when = "Softmax, norms, attention: a tile is divided by its row's sum."
    cites = "Goldberg, What every computer scientist should know about floating-point arithmetic (1991); PTX ISA, div and rcp."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per kernel."""
        found = [(kernel, quotients) for kernel in source.kernels.values() if (quotients := _quotients(kernel))]
        if not found:
            raise NotApplicableError("no tile is divided by a reduction of float32")
        for kernel, quotients in found:
            strategy = f"{kernel.name} multiplies by reciprocals of its rows' values"
            yield Site(strategy, partial(_rewrite, source, quotients))


def _quotients(kernel: Kernel) -> list[cst.BinaryOperation]:
    definitions = Definitions(kernel)
    found = []
    for node in find(kernel.node.body, cst.BinaryOperation, QUOTIENT):
        if isinstance(node.left, cst.Integer | cst.Float):
            continue
        left, right = (expression_of(node.left), expression_of(node.right))
        if _is_row(right, kernel, definitions) and not _is_row(left, kernel, definitions):
            found.append(node)
    return found


def _is_row(node: ast.expr, kernel: Kernel, definitions: Definitions) -> bool:
    """Whether a value is one per row and float32: a sum, maximum or minimum, or a running one that began as float32 zeros."""
    broadcast = isinstance(node, ast.Subscript)
    value = definitions.resolve(node)
    if called(value) in NEUTRAL:
        return True
    name = node.value if isinstance(node, ast.Subscript) else node
    if not isinstance(name, ast.Name):
        return False
    return broadcast and any(_begins_wide(line, name.id) for line in ast.walk(kernel.tree))


def _begins_wide(line: ast.AST, name: str) -> bool:
    if not isinstance(line, ast.Assign) or not isinstance(line.targets[0], ast.Name) or line.targets[0].id != name:
        return False
    return called(line.value) in ("zeros", "full") and "tl.float32" in ast.unparse(line.value)


def _rewrite(source: Source, quotients: list[cst.BinaryOperation]) -> cst.Module:
    module = edited(source.module, [(node, _multiplied) for node in quotients])
    assert isinstance(module, cst.Module)
    return module


def _multiplied(node: Any) -> Any:
    return node.with_changes(operator=cst.Multiply(), right=expression(f"(1.0 / {code(node.right)})"))
