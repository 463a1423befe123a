"""Lets loads and stores of what one program touches once pass by the first cache."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import libcst as cst

from operators.edits import edited, with_argument
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.streams import read_once, written
from operators.source import Source


class CacheHints(Rewrite):
    """Loads of what one program alone reads, once, get `cache_modifier=".cg"` (second-level cache only); stores get `".cs"` (streaming).

    A modifier changes where lines are kept, no value. Stores through pointers that the kernel also loads are left alone.
    """

    name = "cache_hints"
    when = "A kernel moves more than its caches hold and reads nothing twice."
    cites = "PTX ISA, cache operators of ld (.cg) and st (.cs); tl.load and tl.store, parameter cache_modifier."

    def sites(self, source: Source) -> Iterator[Site]:
        """Up to two sites per kernel: its loads, and its stores."""
        for kernel in source.kernels.values():
            for calls, modifier, what in ((read_once(kernel), ".cg", "loads"), (written(kernel), ".cs", "stores")):
                if calls:
                    strategy = f"{what} of {kernel.name} pass by the first cache"
                    yield Site(strategy, partial(_rewrite, source, calls, modifier))


def _rewrite(source: Source, calls: list[cst.Call], modifier: str) -> cst.Module:
    edits = [(call, partial(with_argument, name="cache_modifier", text=f'"{modifier}"')) for call in calls]
    module = edited(source.module, edits)
    assert isinstance(module, cst.Module)
    return module
