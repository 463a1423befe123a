"""Gives each program several neighbouring tiles or rows, one after another."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import instead, unused
from operators.rewrite.accesses import places
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.grids import passable, single
from operators.rewrite.parameters import Edits, only_launches, passed, tunable
from operators.rewrite.repeating import repeatable
from operators.source import Kernel, NotApplicableError, Source, code, find, knob_names

DEFAULT_TILES, TILES = 2, [1, 2, 4, 8]
DOCSTRING = m.SimpleStatementLine([m.Expr(m.SimpleString())])


class TilesPerProgram(Rewrite):
    """The grid shrinks by `TILES`, a knob, and each program loops over that many tiles that follow each other.

    Fewer programs start and end, and neighbours share cache lines and what the compiler moves out of the loop. Every tile is computed as
    before. `rows_per_program` makes one wider tile of them instead; `persistent_rows` strides over the whole grid.
    """

    name = "tiles_per_program"
    when = "Programs are so short that starting them shows: elementwise kernels, small tiles, short rows."
    cites = "Volkov, Better performance at lower occupancy (GTC 2010); thread coarsening in CUDA."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per kernel that asks for its place in the grid."""
        for kernel in source.kernels.values():
            if "program_id" in kernel.uses:
                yield Site(f"each program of {kernel.name} does several tiles", partial(_rewrite, source, kernel))


def _rewrite(source: Source, kernel: Kernel) -> cst.Module:
    if any(name.startswith("TILES") for name in kernel.constexprs):
        raise NotApplicableError(f"each program of {kernel.name} does several tiles already")
    source, kernel = repeatable(source, kernel)
    launches = only_launches(source, kernel)
    grids = [single(launch) for launch in launches]
    if "cdiv" in kernel.uses and any(item.value not in ("0", "1") for grid in grids for item in find(grid, cst.Integer)):
        raise NotApplicableError(f"the grid of {kernel.name} has a literal tile size, which should become a knob first")
    counts = [passable(launch, grid) for launch, grid in zip(launches, grids, strict=True)]
    tile, step, count, tiles = (unused(name, source.names) for name in ("tile", "tile_in_program", "n_tiles", "TILES"))
    knob = unused(tiles, knob_names(source.module))
    edits: Edits = [(call, instead(tile)) for call in places(source, kernel)[0]]
    header = f"for {step} in range(0, {tiles}):\n    {tile} = tl.program_id(0) * {tiles} + {step}\n    if {tile} < {count}:\n        pass\n"
    edits.append((kernel.node.body, partial(_looped, header=header)))
    edits += passed(source, kernel, count, counts, constexpr=False)
    edits += [(grid, partial(_divided, knob=knob)) for grid in grids]
    return tunable(source, kernel, tiles, (DEFAULT_TILES, TILES), edits)


def _looped(block: Any, header: str) -> Any:
    """The statements of a kernel, behind its docstring, in a loop over tiles that are there."""
    place = 1 if m.matches(block.body[0], DOCSTRING) else 0
    loop = cst.ensure_type(cst.parse_statement(header), cst.For)
    guard = cst.ensure_type(loop.body.body[1], cst.If)
    inside = guard.with_changes(body=cst.IndentedBlock(block.body[place:]))
    loop = loop.with_changes(body=loop.body.with_changes(body=[loop.body.body[0], inside]))
    return block.with_changes(body=[*block.body[:place], loop])


def _divided(grid: Any, knob: str) -> Any:
    return cst.parse_expression(f'triton.cdiv({code(grid)}, CONFIG["{knob}"])')
