"""Lets few programs stay and walk over all rows or tiles, so that the loads of one row overlap the arithmetic of the last."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, instead, unused, with_argument, with_knob, with_parameter
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.grids import passable, single
from operators.rewrite.guards import Cover, guards
from operators.rewrite.memory import check_order
from operators.rewrite.repeating import repeatable
from operators.rewrite.row_body import RowBody
from operators.source import Kernel, Launch, NotApplicableError, Source, code, find, knob_names

DEFAULT_PROGRAMS, PROGRAMS = 528, [132, 264, 528, 1056, 2112]
"""Multiples of the 132 multiprocessors of an H100 or H200."""
DEFAULT_STAGES, STAGES = 2, [1, 2, 3, 4]


class PersistentRows(Rewrite):
    """A kernel with one row or tile per program becomes a loop over them, which `num_stages` pipelines; the grid gets a limit.

    What does not depend on the row moves before the loop; loads that all rows share do so in a child of their own, as they hold
    registers. Every row is computed as before, so that results keep their bits.
    """

    name = "persistent_rows"
    when = "There are many more rows than multiprocessors, and rows share loads or are short."
    cites = "Triton tutorials 02-fused-softmax and 09-persistent-matmul."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per kernel that asks for its place in the grid, and one more where rows share loads."""
        for kernel in source.kernels.values():
            if "program_id" in kernel.uses:
                strategy = f"the programs of {kernel.name} stay and loop over its rows"
                yield Site(strategy, partial(_rewrite, source, kernel, shared=False))
                if RowBody(kernel, shared=True).loads_once():
                    yield Site(f"{strategy}, loading once what rows share", partial(_rewrite, source, kernel, shared=True))


def _rewrite(source: Source, kernel: Kernel, *, shared: bool) -> cst.Module:
    source, kernel = repeatable(source, kernel)
    launches = source.launches_of(kernel)
    if len(find(source.module, cst.Name, m.Name(kernel.name))) != len(launches) + 1:
        raise NotApplicableError(f"{kernel.name} is used besides its plain launches")
    grids = [single(launch) for launch in launches]
    counts = [passable(launch, rows) for launch, rows in zip(launches, grids, strict=True)]
    if "cdiv" in kernel.uses and any(n.value not in ("0", "1") for rows in grids for n in find(rows, cst.Integer)):
        raise NotApplicableError(f"the grid of {kernel.name} has a literal tile size, which should become a knob first")
    for launch in launches:
        check_order(kernel, launch)
    tiled = any(guard.cover is Cover.PROGRAM for guard in guards(kernel))
    row, count = (unused(name, source.names) for name in (("tile", "n_tiles") if tiled else ("row_index", "n_rows")))
    known = next((p for p in kernel.parameters if _gives(kernel, launches, p, counts)), None)
    programs, knob = (unused(name, knob_names(source.module)) for name in ("PROGRAMS", "STAGES"))
    stages = unused("STAGES", source.names)
    steps = f"tl.range(tl.program_id(0), {known or count}, tl.num_programs(0), num_stages={stages})"
    body = RowBody(kernel, shared=shared).looped(row, steps)
    edits: list[tuple[cst.CSTNode, Any]] = [(kernel.node.body, lambda block: block.with_changes(body=body))]
    for launch, rows, text in zip(launches, grids, counts, strict=True):
        edits.append((rows, instead(f'min({code(rows)}, CONFIG["{programs}"])')))
        if known is None:
            edits.append((launch.call, partial(with_argument, name=count, text=text)))
        edits.append((launch.call, partial(with_argument, name=stages, text=f'CONFIG["{knob}"]')))
    if known is None:
        edits.append((kernel.node, partial(with_parameter, name=count, constexpr=False)))
    edits.append((kernel.node, partial(with_parameter, name=stages, constexpr=True)))
    module = with_knob(edited(source.module, edits), programs, DEFAULT_PROGRAMS, PROGRAMS)
    return with_knob(module, knob, DEFAULT_STAGES, STAGES)


def _gives(kernel: Kernel, launches: tuple[Launch, ...], parameter: str, counts: list[str]) -> bool:
    given = [code(launch.arguments[parameter].value) for launch in launches if parameter in launch.arguments]
    return given == counts and parameter not in kernel.constexprs
