"""Exchanges the first two axes of a grid, so that programs that run together share the other operand."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst

from operators.edits import edited, instead
from operators.rewrite.accesses import axis_of, calls_of, places
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.grids import axes
from operators.rewrite.parameters import Edits, only_launches
from operators.source import Kernel, NotApplicableError, Source


class SwapGridAxes(Rewrite):
    """`kernel[(a, b)]` becomes `kernel[(b, a)]` with the two indices exchanged: tiles are visited in the transposed order.

    Programs start in the order of the first axis, so this decides whether neighbours share rows or columns. Applied twice it changes
    nothing. The second axis may have 65535 programs.
    """

    name = "swap_grid_axes"
    when = "The operand that programs share along axis 0 is the smaller one, or heads and blocks stand in the wrong order."
    cites = "NVIDIA, CUDA C++ Best Practices Guide, on locality in L2; FlashAttention-2, arXiv:2307.08691, section 3.2."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per kernel that uses two axes."""
        for kernel in source.kernels.values():
            strategy = f"programs of {kernel.name} run along the other axis first"
            yield Site(strategy, partial(_rewrite, source, kernel))


def _rewrite(source: Source, kernel: Kernel) -> cst.Module:
    launches = only_launches(source, kernel)
    if not {0, 1} <= set(places(source, kernel)):
        raise NotApplicableError(f"{kernel.name} does not use two axes of a grid")
    edits: Edits = []
    for name in ("program_id", "num_programs"):
        for call in calls_of(kernel.node.body, name):
            axis = axis_of(call)
            if axis < 2:
                edits.append((call, instead(f"tl.{name}({1 - axis})")))
    grids = [axes(launch) for launch in launches]
    if any(len(grid.elements) < 2 for grid in grids):
        raise NotApplicableError(f"a grid of {kernel.name} has one axis")
    edits += [(grid, _swapped) for grid in grids]
    module = edited(source.module, edits)
    assert isinstance(module, cst.Module)
    return module


def _swapped(grid: Any) -> Any:
    first, second, *others = grid.elements
    return grid.with_changes(elements=[second.with_changes(comma=first.comma), first.with_changes(comma=second.comma), *others])
