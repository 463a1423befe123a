"""Takes reciprocal square roots in one step instead of a root and a division."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited
from operators.rewrite.base import Rewrite, Site
from operators.source import Kernel, NotApplicableError, Source, code, find

ROOT = m.Call(
    func=m.Attribute(m.Name("tl"), m.Name("sqrt")) | m.Attribute(m.Attribute(m.Name("tl"), m.Name("math")), m.Name("sqrt")),
    args=[m.Arg(keyword=None, star="")],
)
QUOTIENT = m.BinaryOperation(operator=m.Divide(), right=ROOT)


class ReciprocalRoots(Rewrite):
    """`1 / tl.sqrt(v)` becomes `tl.rsqrt(v)`, and `x / tl.sqrt(v)` becomes `x * tl.rsqrt(v)`.

    GPUs have an instruction for the reciprocal root, whose error is at most two units in the last place of float32; root and division
    take several each. The tolerance of a task judges the difference; data types stay, as both take float32 and float64 alone.
    """

    name = "reciprocal_roots"
    exact = False
    when = "Norms: the reciprocal of a standard deviation or root mean square."
    cites = "PTX ISA, rsqrt.approx and sqrt.rn (accuracy); CUDA C++ Programming Guide, mathematical functions."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per kernel."""
        found = [(kernel, roots) for kernel in source.kernels.values() if (roots := _roots(kernel))]
        if not found:
            raise NotApplicableError("no kernel divides by a square root")
        for kernel, roots in found:
            yield Site(f"{kernel.name} takes reciprocal square roots in one step", partial(_rewrite, source, roots))


def _roots(kernel: Kernel) -> list[cst.BinaryOperation]:
    return find(kernel.node.body, cst.BinaryOperation, QUOTIENT)


def _rewrite(source: Source, roots: list[cst.BinaryOperation]) -> cst.Module:
    module = edited(source.module, [(node, _one_step) for node in roots])
    assert isinstance(module, cst.Module)
    return module


def _one_step(node: Any) -> Any:
    root = node.right
    function = cst.parse_expression("tl.rsqrt")
    reciprocal = root.with_changes(func=function)
    if code(node.left).strip() in ("1", "1.0", "1."):
        return reciprocal.with_changes(lpar=node.lpar, rpar=node.rpar)
    return node.with_changes(operator=cst.Multiply(), right=reciprocal)
