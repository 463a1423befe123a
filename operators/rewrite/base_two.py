"""Turns natural exponentials into powers of two, and the factor this takes into a scale that is there anyway."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst

from operators.edits import edited
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.exponents import LOG2_E, Exponents, exponentials, product, scaled
from operators.source import Kernel, NotApplicableError, Source

LOGARITHMS = frozenset({"log", "log2", "log1p"})


class BaseTwoExponent(Rewrite):
    """`tl.exp(x)` becomes `tl.exp2(x * 1.4426950408889634)`, in all places of a kernel at once.

    GPUs have an instruction for powers of two only, so `tl.exp` multiplies by log2(e) each time. Where a scalar scales what
    becomes the exponent, as `scale` does in attention, the factor goes there: scores and their running maxima are then in units
    of log 2, and no exponential needs a product of its own. Differences, maxima, comparisons and -inf mean the same in any unit.
    Kernels that take logarithms, or let a value in such units out, get the plain form, which compiles to the instructions that
    `tl.exp` does but shows the product to whoever changes the kernel next.

    The rounding of an exponent changes in its last bit or two, for which results differ slightly; data types do not.
    """

    name = "base_two_exponent"
    exact = False
    when = "Softmax and attention, whose exponentials compete with the tensor cores for issue slots."
    cites = "FlashAttention-2, arXiv:2307.08691 (exp2 with a folded scale); PTX ISA, ex2.approx."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per kernel that calls `tl.exp`."""
        kernels = [kernel for kernel in source.kernels.values() if exponentials(kernel.node)]
        if not kernels:
            raise NotApplicableError("no kernel calls tl.exp")
        for kernel in kernels:
            strategy = f"{kernel.name} computes exponentials as powers of two"
            yield Site(strategy, partial(_rewrite, source, kernel))


def _rewrite(source: Source, kernel: Kernel) -> cst.Module:
    calls = exponentials(kernel.node)
    launched = any(launch.kernel == kernel.name for launch in source.launches)
    scales: dict[int, cst.BaseExpression] = {}
    folded: set[int] = set()
    for call in calls:
        if id(call) not in folded and not LOGARITHMS & kernel.uses:
            group = Exponents(kernel, launched=launched)
            if group.follow(call):
                scales |= group.scales
                folded |= group.calls
    edits: list[tuple[cst.CSTNode, Any]] = [(scale, scaled) for scale in scales.values()]
    for call in calls:
        edits.append((call, _renamed if id(call) in folded else _multiplied))
    module = edited(source.module, edits)
    assert isinstance(module, cst.Module)
    return module


def _renamed(call: cst.Call) -> cst.Call:
    function = cst.ensure_type(call.func, cst.Attribute)
    return call.with_changes(func=function.with_changes(attr=cst.Name("exp2")))


def _multiplied(call: cst.Call) -> cst.Call:
    first = call.args[0]
    return _renamed(call.with_changes(args=[first.with_changes(value=product(first.value, LOG2_E)), *call.args[1:]]))
