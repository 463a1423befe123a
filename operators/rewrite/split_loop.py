"""Divides a long sum among programs: partial sums go to scratch memory, a second kernel adds them and finishes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst

from operators.rewrite.base import Rewrite, Site
from operators.rewrite.dividing import Summing, divided, summing
from operators.source import Kernel, Source

DEFAULT_SPLIT, SPLITS = 4, [1, 2, 4, 8, 16]


class SplitLoop(Rewrite):
    """Split-K: `SPLIT` programs, a knob, share the rounds of a kernel's loop; its second half adds their float32 sums in order.

    For kernels that are one loop adding to one float32 accumulator. The second kernel is the old one with the loop over partial sums in
    its place, so whatever follows the loop is done once. The result does not depend on which program is first, but sums have another
    order than before.
    """

    name = "split_loop"
    exact = False
    when = "There are fewer tiles than multiprocessors and the summed dimension is long: small M and N, column sums."
    cites = "Osama et al., Stream-K, arXiv:2301.03598 (fixed-split); CUTLASS documentation, parallelized reductions."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per kernel with a loop of its own."""
        for kernel in source.kernels.values():
            if "program_id" in kernel.uses:
                strategy = f"several programs share the loop of {kernel.name}, a second kernel adds their sums"
                yield Site(strategy, partial(_rewrite, source, kernel))


def _rewrite(source: Source, kernel: Kernel) -> cst.Module:
    work = summing(source, kernel, "SPLIT")
    total = work.parts.accumulator
    there = work.at(f"split * {work.tiles} + {work.tile}")
    here = work.at(f"tl.program_id({work.axes}) * {work.tiles} + {work.tile}")
    first = [*shared_rounds(work), cst.parse_statement(f"tl.store({here}, {total})")]
    second = [cst.parse_statement(f"for split in range(0, {work.share}):\n    {total} += tl.load({there})\n")]
    memory = "torch.empty({share} * {tiles} * {size}, {options})"
    return divided(work, (first, second), memory, "({axes}, {share})", (DEFAULT_SPLIT, SPLITS))


def shared_rounds(work: Summing) -> list[Any]:
    """What stands before a kernel's loop and the loop itself, of whose rounds a program does its part; the last axis says which."""
    parts, share = work.parts, work.share
    rounds = [
        f"rounds = tl.cdiv(tl.cdiv({parts.high} - {parts.low}, {parts.step}), {share})",
        f"first_round = tl.program_id({work.axes}) * rounds",
        f"begin = {parts.low} + first_round * {parts.step}",
        f"end = min(begin + rounds * {parts.step}, {parts.high})",
        *(f"{name} += first_round * ({step})" for name, step in parts.moved.items()),
    ]
    return [*parts.before, *map(cst.parse_statement, rounds), work.loop("begin", "end")]
