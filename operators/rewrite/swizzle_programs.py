"""Visits the tiles of a two-dimensional grid in groups, so that programs that run together share rows and columns in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import libcst as cst

from operators.edits import edited, instead, unused
from operators.rewrite.accesses import places
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.parameters import Edits, tunable, with_prologue
from operators.source import Kernel, NotApplicableError, Source

DEFAULT_GROUP, GROUPS = 8, [1, 2, 4, 8, 16]


class SwizzlePrograms(Rewrite):
    """The two indices of a program are renumbered by `tl.swizzle2d`: `GROUP` rows of tiles column by column, then the next rows.

    Every tile is computed once by one program, as before; where launches cannot be changed the group is 8.
    """

    name = "swizzle_programs"
    when = "Tiles of a 2-D grid share operands (matrix products, attention, transposes) that do not all fit in L2."
    cites = "Triton tutorial 03-matrix-multiplication, L2 cache optimisations; triton.language.swizzle2d."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per kernel that uses two axes."""
        for kernel in source.kernels.values():
            strategy = f"programs of {kernel.name} go over its tiles in groups"
            yield Site(strategy, partial(_rewrite, source, kernel))


def _rewrite(source: Source, kernel: Kernel) -> cst.Module:
    if "swizzle2d" in kernel.uses:
        raise NotApplicableError(f"{kernel.name} is swizzled already")
    found = places(source, kernel)
    if not {0, 1} <= set(found):
        raise NotApplicableError(f"{kernel.name} does not use two axes of a grid")
    first, second, group = (unused(name, source.names) for name in ("swizzled_0", "swizzled_1", "GROUP"))
    try:
        source.launches_of(kernel)
    except NotApplicableError:
        group = str(DEFAULT_GROUP)
    # Programs start in the order of axis 0, so axis 1 is what a matrix in that order has as its rows.
    sizes = f"tl.num_programs(1), tl.num_programs(0), {group}"
    line = f"{second}, {first} = tl.swizzle2d(tl.program_id(1), tl.program_id(0), {sizes})"
    edits: Edits = [(call, instead(first)) for call in found[0]]
    edits += [(call, instead(second)) for call in found[1]]
    edits.append((kernel.node.body, with_prologue(kernel, line)))
    if group.isdecimal():
        module = edited(source.module, edits)
        assert isinstance(module, cst.Module)
        return module
    return tunable(source, kernel, group, (DEFAULT_GROUP, GROUPS), edits)
