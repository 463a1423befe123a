"""Tells the cache which loads will not be needed again, and which every program needs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import libcst as cst

from operators.edits import edited, with_argument
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.streams import read_once, shared
from operators.source import NotApplicableError, Source


class EvictionHints(Rewrite):
    """Loads of what one program alone reads, once, get `eviction_policy="evict_first"`; loads that all programs share, `evict_last`.

    A hint changes which lines the cache gives up, no value.
    """

    name = "eviction_hints"
    when = "Streams that are read once push weights or tables out of the cache that all programs read."
    cites = "PTX ISA, ld with .level::eviction_priority; TorchInductor's Triton code gives the same hints to streams."

    def check_target(self, target: str) -> None:
        """CUDA alone: others ignore the hint."""
        if not target.startswith("cuda"):
            raise NotApplicableError(f"{target} ignores eviction policies")

    def sites(self, source: Source) -> Iterator[Site]:
        """Up to two sites per kernel: for streams, and for what programs share."""
        for kernel in source.kernels.values():
            for loads, policy, what in (
                (read_once(kernel), "evict_first", "streams"),
                (shared(kernel), "evict_last", "shared loads"),
            ):
                if loads:
                    strategy = f"{kernel.name} marks its {what} {policy}"
                    yield Site(strategy, partial(_rewrite, source, loads, policy))


def _rewrite(source: Source, loads: list[cst.Call], policy: str) -> cst.Module:
    edits = [(call, partial(with_argument, name="eviction_policy", text=f'"{policy}"')) for call in loads]
    module = edited(source.module, edits)
    assert isinstance(module, cst.Module)
    return module
