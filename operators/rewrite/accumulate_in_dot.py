"""Gives what a matrix product is added to to the product itself, so that the tensor cores add in place."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited
from operators.rewrite.accesses import calls_of, keyword, positional, reads, writes
from operators.rewrite.base import Rewrite, Site
from operators.source import Kernel, NotApplicableError, Source, assigned, code, find

SUM = m.BinaryOperation(operator=m.Add())


class AccumulateInDot(Rewrite):
    """`acc += tl.dot(a, b)` becomes `acc = tl.dot(a, b, acc)`, and `acc * s + tl.dot(p, v)` becomes `tl.dot(p, v, acc * s)`.

    The compiler folds the first by itself where nothing stands between product and sum. The accumulator must be float32 or int32 from
    its first value on, as the product's result is. A GPU adds in another order then, within float32.
    """

    name = "accumulate_in_dot"
    exact = False
    when = "A matrix product is added to a value besides the plain `acc +=` that compilers fold, as in attention."
    cites = "Triton, lib/Dialect/Triton/Transforms/Combine.td: (add (dot a b 0) d) → (dot a b d); tl.dot's parameter `acc`."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per kernel."""
        found = [(kernel, sums) for kernel in source.kernels.values() if (sums := _sums(kernel))]
        if not found:
            raise NotApplicableError("no product is added to a float32 or int32 accumulator outside of tl.dot")
        for kernel, sums in found:
            strategy = f"{kernel.name} accumulates inside its matrix products"
            yield Site(strategy, partial(_rewrite, source, sums))


def _rewrite(source: Source, sums: list[tuple[cst.CSTNode, cst.Call, str]]) -> cst.Module:
    module = edited(source.module, [(node, partial(_folded, acc=acc)) for node, _, acc in sums])
    assert isinstance(module, cst.Module)
    return module


def _sums(kernel: Kernel) -> list[tuple[cst.CSTNode, cst.Call, str]]:
    """The statements and sums to change: the node, the product in it, and what is added."""
    if "dot" not in kernel.uses:
        return []
    wide = {name for name in writes(kernel.node.body) if _is_wide(kernel, name)}
    found: list[tuple[cst.CSTNode, cst.Call, str]] = []
    for line in find(kernel.node.body, cst.AugAssign, m.AugAssign(target=m.Name(), operator=m.AddAssign())):
        if _is_product(line.value) and code(line.target) in wide:
            found.append((line, cst.ensure_type(line.value, cst.Call), code(line.target)))
    for total in find(kernel.node.body, cst.BinaryOperation, SUM):
        for product, other in ((total.left, total.right), (total.right, total.left)):
            if _is_product(product) and not _is_product(other) and reads(other) & wide and not calls_of(other, "dot"):
                found.append((total, cst.ensure_type(product, cst.Call), code(other)))
    return found


def _is_product(node: cst.BaseExpression) -> bool:
    plain = m.matches(node, m.Call(func=m.Attribute(m.Name("tl"), m.Name("dot"))))
    if not plain or not isinstance(node, cst.Call):
        return False
    return len(positional(node)) == 2 and keyword(node, "acc") is None and keyword(node, "out_dtype") is None


def _is_wide(kernel: Kernel, name: str) -> bool:
    """Whether a name begins as zeros of the type that products have."""
    first = [value for value in assigned(kernel.node, name) if calls_of(value, "zeros", "full")]
    types = [
        keyword(call, "dtype") or (positional(call) or [call])[-1] for value in first for call in calls_of(value, "zeros", "full")
    ]
    return bool(types) and all(code(item) in ("tl.float32", "tl.int32") for item in types)


def _folded(node: Any, acc: str) -> Any:
    if isinstance(node, cst.AugAssign):
        return cst.Assign([cst.AssignTarget(node.target)], _with(node.value, acc), semicolon=node.semicolon)
    product = node.left if _is_product(node.left) else node.right
    return _with(product, acc)


def _with(call: Any, acc: str) -> Any:
    separated = call.args[0].comma
    second = call.args[1].with_changes(comma=separated)
    return call.with_changes(
        args=[call.args[0], second, cst.Arg(cst.parse_expression(f"({acc})" if "\n" in acc else acc)), *call.args[2:]]
    )
