"""Divides a long sum among programs that add to one place in memory, whoever comes first; a second kernel finishes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import libcst as cst

from operators.rewrite.base import Rewrite, Site
from operators.rewrite.dividing import divided, summing
from operators.rewrite.split_loop import DEFAULT_SPLIT, SPLITS, shared_rounds
from operators.source import Kernel, Source


class SplitLoopAtomically(Rewrite):
    """Split-K with atomics: as `split_loop`, but programs add their float32 sums to one tile of scratch memory.

    Memory and the second kernel's reads do not grow with `SPLIT`, for which the scratch must begin as zeros, and sums depend on the order
    in which programs finish: results may differ from run to run by roundings.
    """

    name = "split_loop_atomically"
    exact = False
    when = "As for `split_loop`, where partial sums of all programs would not fit in the cache: many splits, large tiles."
    cites = "Hoque et al., arXiv:2402.00025 (split-K with atomic reduction in Triton); PTX ISA, red.global.add.f32."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per kernel with a loop of its own."""
        for kernel in source.kernels.values():
            if "program_id" in kernel.uses:
                strategy = f"several programs share the loop of {kernel.name} and add to the same sums"
                yield Site(strategy, partial(_rewrite, source, kernel))


def _rewrite(source: Source, kernel: Kernel) -> cst.Module:
    work = summing(source, kernel, "SPLIT")
    total, place = work.parts.accumulator, work.at(work.tile)
    first = [*shared_rounds(work), cst.parse_statement(f'tl.atomic_add({place}, {total}, sem="relaxed")')]
    second = [cst.parse_statement(f"{total} += tl.load({place})")]
    memory = "torch.zeros({tiles} * {size}, {options})"
    return divided(work, (first, second), memory, "({axes}, {share})", (DEFAULT_SPLIT, SPLITS))
