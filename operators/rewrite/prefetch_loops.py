"""Lets the loads of the next rounds of a loop start before the arithmetic of this one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst

from operators.edits import unused, with_argument
from operators.rewrite.accesses import calls_of, keyword, loops
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.memory import check_order
from operators.rewrite.parameters import Edits, tunable
from operators.source import Kernel, NotApplicableError, Source, code

DEFAULT_STAGES, STAGES = 3, [1, 2, 3, 4, 5]


class PrefetchLoops(Rewrite):
    """`for i in range(…)` becomes `for i in tl.range(…, num_stages=PREFETCH)`, with a knob of the loop's own.

    The launch option `num_stages` pipelines loads that feed matrix products alone; a loop that names its stages has all its loads
    pipelined, sums and elementwise passes included. A loop that may load what it stored is left alone.
    """

    name = "prefetch_loops"
    when = "A loop waits for its loads: row reductions, norms and scans over long rows, matrix products with extra operands."
    cites = "Triton documentation, tl.range (num_stages); lib/Dialect/TritonGPU/Transforms/Pipeliner."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per loop that loads and has no loop inside."""
        for kernel in source.kernels.values():
            for loop in loops(kernel):
                if calls_of(loop.body, "load") and not _inner(kernel, loop):
                    strategy = f"the loop over {code(loop.target)} in {kernel.name} loads ahead"
                    yield Site(strategy, partial(_rewrite, source, kernel, loop))


def _inner(kernel: Kernel, loop: cst.For) -> bool:
    return any(other is not loop and code(other) in code(loop) for other in loops(kernel))


def _rewrite(source: Source, kernel: Kernel, loop: cst.For) -> cst.Module:
    iterated = cst.ensure_type(loop.iter, cst.Call)
    if keyword(iterated, "num_stages") is not None:
        raise NotApplicableError(f"the loop over {code(loop.target)} in {kernel.name} names its stages already")
    for launch in source.launches_of(kernel):
        check_order(kernel, launch)
    stages = unused("PREFETCH", source.names)
    edits: Edits = [(loop.iter, partial(_staged, stages=stages))]
    return tunable(source, kernel, stages, (DEFAULT_STAGES, STAGES), edits)


def _staged(call: Any, stages: str) -> Any:
    return with_argument(call.with_changes(func=cst.parse_expression("tl.range")), "num_stages", stages)
