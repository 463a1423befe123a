"""Divides all rounds of all tiles evenly among a fixed number of programs, wherever tiles begin and end."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, instead, unused
from operators.rewrite.accesses import expression_of, places
from operators.rewrite.accumulating import DOCSTRING
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.dividing import Summing, divided, summing
from operators.rewrite.guards import Definitions
from operators.source import Kernel, NotApplicableError, Source

DEFAULT_STREAMS, STREAMS = 264, [66, 132, 264, 528]
"""Half, one, two and four programs per multiprocessor of an H200."""


class StreamRounds(Rewrite):
    """Stream-K: `STREAMS` programs, a knob, each do the same number of rounds of a kernel's loop, over as many tiles as these touch.

    No multiprocessor idles in a last wave, whatever the number of tiles. Each program leaves a float32 sum per tile that it touched;
    program and tile together name its slot, for their sum grows from each to the next. A second kernel, the old one with a loop over slots
    in place of its own, adds them in order and finishes. All tiles must have the same number of rounds.
    """

    name = "stream_rounds"
    exact = False
    when = "The number of tiles is little above a multiple of the number of multiprocessors, and the summed dimension is long."
    cites = (
        "Osama et al., Stream-K: Work-centric parallel decomposition for dense matrix-matrix multiplication, arXiv:2301.03598."
    )

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per kernel with a loop of its own."""
        for kernel in source.kernels.values():
            if "program_id" in kernel.uses:
                strategy = f"programs share the rounds of all tiles of {kernel.name} evenly"
                yield Site(strategy, partial(_rewrite, source, kernel))


def _rewrite(source: Source, kernel: Kernel) -> cst.Module:
    work = summing(source, kernel, "STREAMS")
    count = _rounds(kernel, work)
    total, share = work.parts.accumulator, work.share
    tiles, tile, across = (unused(name, source.names) for name in ("n_tiles", "tile", "tiles_across"))
    size = f"max(tl.cdiv({{tiles}} * ({count}), {share}), 1)"
    first = _streamed(work, count, size.format(tiles=tiles), (tiles, tile, across))
    there = work.at(f"stream + {work.tile}")
    second = [
        cst.parse_statement(f"rounds_each = {size.format(tiles=work.tiles)}"),
        cst.parse_statement(f"first_stream = {work.tile} * ({count}) // rounds_each"),
        cst.parse_statement(f"streams_end = tl.cdiv(({work.tile} + 1) * ({count}), rounds_each)"),
        cst.parse_statement(f"for stream in range(first_stream, streams_end):\n    {total} += tl.load({there})\n"),
    ]
    memory = "torch.empty(({tiles} + {share}) * {size}, {options})"
    extra = {tiles: "{tiles}"} | ({across: "{across}"} if work.axes == 2 else {})
    return divided(work, (first, second), memory, "({share},)", (DEFAULT_STREAMS, STREAMS), extra)


def _rounds(kernel: Kernel, work: Summing) -> str:
    """How many rounds the loop has, of parameters alone."""
    parts, definitions = work.parts, Definitions(kernel)
    bounds = []
    for text in (parts.high, parts.low, parts.step):
        tree = _resolved(expression_of(cst.parse_expression(text)), definitions)
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        if names - {"tl", *kernel.parameters} or "program_id" in ast.unparse(tree):
            raise NotApplicableError(f"the rounds of {kernel.name} are not the same for all tiles, or not told by its parameters")
        bounds.append(f"({ast.unparse(tree)})")
    return f"tl.cdiv({bounds[0]} - {bounds[1]}, {bounds[2]})"


class _Resolver(ast.NodeTransformer):
    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._depth = 0

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = self._definitions.resolve(node)
        if value is node or self._depth > 8:
            return node
        self._depth += 1
        result: ast.expr = self.visit(copy.deepcopy(value))
        self._depth -= 1
        return result


def _resolved(tree: ast.expr, definitions: Definitions) -> ast.expr:
    result = _Resolver(definitions).visit(copy.deepcopy(tree))
    assert isinstance(result, ast.expr)
    return result


def _streamed(work: Summing, count: str, size: str, names: tuple[str, str, str]) -> list[Any]:
    """The kernel that sums: a loop over the tiles that a program touches, around what the old one did."""
    tiles, tile, across = names
    parts = work.parts
    indices = {0: tile} if work.axes == 1 else {0: f"({tile} % {across})", 1: f"({tile} // {across})"}
    calls = places(work.source, work.kernel)
    edits = [(call, instead(text)) for axis, text in indices.items() for call in calls.get(axis, [])]
    docs = list(parts.before[:1]) if m.matches(parts.before[0], DOCSTRING) else []
    before = [edited(line, edits) for line in parts.before[len(docs) :]]
    loop = edited(work.loop("begin", "end"), edits)
    inside = [
        f"{tile} = at // rounds",
        f"first_round = at - {tile} * rounds",
        "last_round = min(rounds, first_round + stop - at)",
    ]
    bounds = [
        f"begin = {parts.low} + first_round * {parts.step}",
        f"end = min({parts.low} + last_round * {parts.step}, {parts.high})",
        *(f"{name} += first_round * ({step})" for name, step in parts.moved.items()),
    ]
    slot = work.at(f"tl.program_id(0) + {tile}")
    after = [f"tl.store({slot}, {parts.accumulator})", "at += last_round - first_round"]
    parsed = cst.parse_statement
    body = [*map(parsed, inside), *before, *map(parsed, bounds), loop, *map(parsed, after)]
    outer = cst.ensure_type(parsed("while at < stop:\n    pass"), cst.While).with_changes(body=cst.IndentedBlock(body))
    start = [f"rounds = {count}", f"rounds_each = {size}", "at = tl.program_id(0) * rounds_each",
             f"stop = min(at + rounds_each, {tiles} * rounds)"]  # fmt: skip
    return [*docs, *map(parsed, start), outer]
