"""Lets few programs stay and walk over all tiles of a grid of two or three axes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import libcst as cst

from operators.rewrite.accesses import places
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.flatten_grid import FlattenGrid
from operators.rewrite.persistent_rows import PersistentRows
from operators.source import Kernel, NotApplicableError, Source, read_source


class PersistentTiles(Rewrite):
    """The grid gets one axis (`flatten_grid`), then a limit, and each program strides over its tiles (`persistent_rows`).

    `num_stages` pipelines the loop over tiles, so that loads of the next overlap the end of the last. Every tile is computed as before.
    """

    name = "persistent_tiles"
    when = "A 2-D or 3-D grid has many more tiles than multiprocessors, or a last wave that leaves most of them idle."
    cites = (
        "Triton tutorial 09-persistent-matmul; Gupta et al., A study of persistent threads style GPU programming (InPar 2012)."
    )

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per kernel that uses several axes."""
        for kernel in source.kernels.values():
            strategy = f"the programs of {kernel.name} stay and loop over the tiles of its grid"
            yield Site(strategy, partial(_rewrite, source, kernel))


def _rewrite(source: Source, kernel: Kernel) -> cst.Module:
    if not set(places(source, kernel)) - {0}:
        raise NotApplicableError(f"{kernel.name} uses one axis of its grid, see persistent_rows")
    flat = next(site for site in FlattenGrid().sites(source) if f" {kernel.name} " in site.strategy).apply()
    persistent = PersistentRows().sites(read_source(flat.code))
    return next(site for site in persistent if f" of {kernel.name} " in site.strategy).apply()
