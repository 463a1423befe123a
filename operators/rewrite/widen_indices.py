"""Computes row offsets in 64 bits, where the product of a place in the grid and a stride may exceed 32."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, expression
from operators.rewrite.accesses import places
from operators.rewrite.base import Rewrite, Site
from operators.source import Kernel, NotApplicableError, Source, code, find

PRODUCT = m.BinaryOperation(operator=m.Multiply())


class WidenIndices(Rewrite):
    """`row * stride`, with `row` a place in the grid and `stride` a parameter, becomes `row.to(tl.int64) * stride`.

    Products that fit give the same offsets; those that do not used to wrap around, and now are right. The inverse of
    `narrow_indices`; worth its price only where tensors may have 2**31 elements.
    """

    name = "widen_indices"
    when = "A kernel reads or writes out of bounds on tensors of more than 2**31 elements."
    cites = (
        "Triton's arithmetic follows C: int32 times int32 is int32; the rule of thumb of Triton's maintainers for large strides."
    )

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per kernel with such products."""
        found = False
        for kernel in source.kernels.values():
            products = _products(source, kernel)
            if products:
                found = True
                yield Site(f"{kernel.name} computes row offsets in 64 bits", partial(_rewrite, source, products))
        if not found:
            raise NotApplicableError("no kernel multiplies a place in the grid by a parameter in 32 bits")


def _products(source: Source, kernel: Kernel) -> list[tuple[cst.BaseExpression, str]]:
    """Factors to widen, with their text."""
    if any(call for calls in places(source, kernel).values() for call in calls) is False:
        return []
    named = {
        code(line.targets[0].target)
        for line in find(kernel.node.body, cst.Assign, m.Assign(targets=[m.AssignTarget(m.Name())]))
        if m.matches(line.value, m.Call(func=m.Attribute(m.Name("tl"), m.Name("program_id"))))
    }
    strides = set(kernel.parameters) - kernel.constexprs
    found = []
    for node in find(kernel.node.body, cst.BinaryOperation, PRODUCT):
        for factor, other in ((node.left, node.right), (node.right, node.left)):
            place = code(factor).strip() in named or m.matches(
                factor, m.Call(func=m.Attribute(m.Name("tl"), m.Name("program_id")))
            )
            if place and isinstance(other, cst.Name) and other.value in strides:
                found.append((factor, code(factor).strip()))
    return found


def _rewrite(source: Source, products: list[tuple[cst.BaseExpression, str]]) -> cst.Module:
    edits: list[tuple[cst.CSTNode, Any]] = [
        (node, lambda _, text=text: expression(f"{text}.to(tl.int64)")) for node, text in products
    ]
    module = edited(source.module, edits)
    assert isinstance(module, cst.Module)
    return module
