"""Turns a kernel that holds a whole row in one block into loops over blocks of columns with running reductions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst

from operators.edits import edited, instead, replaced, unused, with_knob
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.column_blocks import ColumnBlocks
from operators.rewrite.dataflow import UNSPLITTABLE
from operators.rewrite.guards import Cover, Guard, guards
from operators.source import Kernel, NotApplicableError, Source, code, knob_names

DEFAULT_BLOCK, BLOCKS = 2048, [256, 512, 1024, 2048, 4096, 8192]


class OnlineBlocks(Rewrite):
    """Row reductions run block by block, then a second pass makes the output.

    A maximum and the sum of exponentials shifted by it share one pass, the sum being rescaled as the maximum grows: Milakov and
    Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867. Other sums just run. The wrapper caps the block
    with a knob. Sums are added in another order, in float32 as before.
    """

    name = "online_blocks"
    exact = False
    when = "Rows are longer than what registers hold, or a row is loaded once per pass anyway."
    cites = "Milakov and Gimelshein, arXiv:1805.02867."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per kernel with a block that spans a row."""
        for kernel in source.kernels.values():
            whole = {guard.block: guard for guard in guards(kernel) if guard.cover is Cover.WHOLE}
            for guard in whole.values():
                strategy = f"{kernel.name} goes over its row in blocks of {guard.block}"
                yield Site(strategy, partial(_rewrite, source, kernel, guard))


def _rewrite(source: Source, kernel: Kernel, guard: Guard) -> cst.Module:
    if UNSPLITTABLE & kernel.uses:
        raise NotApplicableError(
            f"{kernel.name} calls {', '.join(sorted(UNSPLITTABLE & kernel.uses))}, which needs the whole row"
        )
    if any(other.block == guard.block and other.bound != guard.bound for other in guards(kernel)):
        raise NotApplicableError(f"{guard.block} of {kernel.name} spans several ranges")
    knob = unused(guard.block, knob_names(source.module))
    edits: list[tuple[cst.CSTNode, Any]] = []
    for launch in source.launches_of(kernel):
        old = launch.text(guard.block)
        new = f'min({old}, CONFIG["{knob}"])'
        for given in launch.arguments.values():
            if given is launch.arguments[guard.block]:
                edits.append((given.value, instead(new)))
            elif "%" in code(given.value):  # a divisibility flag follows its block
                edits.append((given.value, lambda node, old=old, new=new: replaced(node, old, new)))
    body = ColumnBlocks(kernel, guard, source.names).body()
    edits.append((kernel.node.body, lambda block: block.with_changes(body=body)))
    return with_knob(edited(source.module, edits), knob, DEFAULT_BLOCK, BLOCKS)
