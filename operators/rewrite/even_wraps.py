"""Drops the modulo that wraps a tile's indices around where a constexpr from the wrapper says that tiles end where the range does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, expression, unused
from operators.rewrite.accesses import expression_of
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.covering import covers_exactly, operand
from operators.rewrite.guards import Cover, Definitions, Guard, read_guard
from operators.rewrite.parameters import Edits, passed
from operators.source import Kernel, NotApplicableError, Source, code, find

WRAPPED = m.BinaryOperation(operator=m.Modulo(), right=m.Name())


class EvenWraps(Rewrite):
    """`(pid * BLOCK + tl.arange(0, BLOCK)) % n` becomes the plain range under `NO_WRAP_N`, with `NO_WRAP_N = n % BLOCK == 0`.

    Behind a modulo the compiler cannot see that indices are contiguous, so it loads element by element along them. The wrapped form stays
    for other sizes.
    """

    name = "even_wraps"
    when = "A product of matrices wraps its rows and columns around, as Triton's tutorial does, and sizes divide evenly."
    cites = (
        "Triton tutorial 03-matrix-multiplication (the wrapped form); AxisInfo analysis of the compiler (what hides contiguity)."
    )

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per kernel and wrapped range."""
        for kernel in source.kernels.values():
            for (bound, block), guard in _wraps(kernel).items():
                strategy = f"{kernel.name} does not wrap around {bound} where {block} divides it"
                yield Site(strategy, partial(_rewrite, source, kernel, guard))


def _wraps(kernel: Kernel) -> dict[tuple[str, str], Guard]:
    found = {}
    for node in find(kernel.node.body, cst.BinaryOperation, WRAPPED):
        guard = _guard(kernel, node)
        if guard is not None:
            found[guard.bound, guard.block] = guard
    return found


def _guard(kernel: Kernel, node: cst.BinaryOperation) -> Guard | None:
    """The range as if it were guarded, if it covers [0, bound) tile by tile and is not conditional already."""
    left = expression_of(node.left)
    definitions = Definitions(kernel)
    compare = ast.Compare(left, [ast.Lt()], [ast.Name(code(node.right), ast.Load())])
    guard = read_guard(compare, kernel, definitions)
    return guard if guard is not None and guard.cover is Cover.PROGRAM else None


def _rewrite(source: Source, kernel: Kernel, guard: Guard) -> cst.Module:
    if any(name.startswith("NO_WRAP_" + guard.bound.upper()) for name in kernel.parameters):
        raise NotApplicableError(f"{kernel.name} has a path without wrapping already")
    launches = source.launches_of(kernel)
    flag = unused("NO_WRAP_" + guard.bound.upper(), source.names)
    evens = []
    for launch in launches:
        if not covers_exactly(launch, kernel, guard):
            raise NotApplicableError(f"the grid of {kernel.name} may be larger than the tiles of {guard.bound}")
        evens.append(f"{operand(launch.text(guard.bound))} % {operand(launch.text(guard.block))} == 0")
    edits: Edits = passed(source, kernel, flag, evens, constexpr=True)
    for node in find(kernel.node.body, cst.BinaryOperation, WRAPPED):
        other = _guard(kernel, node)
        if other is not None and (other.bound, other.block) == (guard.bound, guard.block):
            edits.append((node, partial(_either, flag=flag)))
    module = edited(source.module, edits)
    assert isinstance(module, cst.Module)
    return module


def _either(node: Any, flag: str) -> Any:
    plain, wrapped = code(node.left), code(node.with_changes(lpar=[], rpar=[]))
    return expression(f"({plain} if {flag} else {wrapped})")
