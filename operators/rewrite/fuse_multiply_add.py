"""Writes products that are added to something as fused multiply-adds, which round once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import libcst as cst
import libcst.matchers as m

from operators.edits import edited
from operators.rewrite.accesses import expression_of
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.values import Values
from operators.source import Kernel, NotApplicableError, Source, called, code, find

PRODUCT = m.BinaryOperation(operator=m.Multiply())
SUM = m.BinaryOperation(operator=m.Add())


class FuseMultiplyAdd(Rewrite):
    """`a * b + c` of float32 tiles becomes `tl.fma(a, b, c)`, in all places of a kernel at once.

    The compiler fuses most of them by itself where it may (`enable_fp_fusion`); written out they are fused in any order of passes and on
    any backend, and a horizontal chain is visible to whoever changes the kernel next. All three must be float32 for certain.
    """

    name = "fuse_multiply_add"
    exact = False
    when = "Polynomials, normalisation with scale and shift, optimizer steps: chains of products and sums; fusion is off or incomplete."
    cites = "PTX ISA, fma.rn.f32; triton.language.fma."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per kernel with such sums."""
        for kernel in source.kernels.values():
            if find(kernel.node.body, cst.BinaryOperation, m.BinaryOperation(left=PRODUCT, operator=m.Add())) or find(
                kernel.node.body, cst.BinaryOperation, m.BinaryOperation(right=PRODUCT, operator=m.Add())
            ):
                yield Site(f"{kernel.name} multiplies and adds in one step", partial(_rewrite, source, kernel))


def _rewrite(source: Source, kernel: Kernel) -> cst.Module:
    values = Values(kernel)
    edits: list[tuple[cst.CSTNode, object]] = []
    for node in find(kernel.node.body, cst.BinaryOperation, SUM):
        for product, other, left in ((node.left, node.right, True), (node.right, node.left, False)):
            if m.matches(product, PRODUCT) and _wide(values, product, other):
                edits.append((node, partial(_fused, left=left)))
                break
    if not edits:
        raise NotApplicableError(f"no product of {kernel.name} and what it is added to are tiles of float32 for certain")
    module = edited(source.module, edits)  # type: ignore[arg-type]
    assert isinstance(module, cst.Module)
    return module


def _wide(values: Values, product: cst.BaseExpression, other: cst.BaseExpression) -> bool:
    node = cst.ensure_type(product, cst.BinaryOperation)
    parts = [expression_of(item) for item in (node.left, node.right, other)]
    tiles = all(any(called(item) in ("arange", "load", "zeros", "full") for item in values.behind(part)) for part in parts)
    return tiles and all(values.is_float32(part) for part in parts)


def _fused(node: cst.BinaryOperation, left: bool) -> cst.BaseExpression:
    product, other = (node.left, node.right) if left else (node.right, node.left)
    if not isinstance(product, cst.BinaryOperation):  # an edit below it made it a call
        return node
    text = f"tl.fma({code(product.left)}, {code(product.right)}, {code(other)})"
    return cst.parse_expression(text)
