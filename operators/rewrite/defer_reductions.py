"""Keeps the partial results of a loop in a tile and reduces them once after it, instead of once a round."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import libcst as cst

from operators.edits import edited, unused
from operators.rewrite.accesses import loops, reads, tree_of, writes
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.values import Values
from operators.source import Kernel, NotApplicableError, Source, argument, called

FIRST = {"sum": "0.0", "max": 'float("-inf")', "min": 'float("inf")'}


@dataclass(frozen=True)
class Running:
    """`total += tl.sum(tile)`, or the like for `max` and `min`."""

    line: cst.SimpleStatementLine
    total: str
    kind: str
    call: ast.Call


class DeferReductions(Rewrite):
    """`total += tl.sum(x)` in a loop becomes `totals += x`, a tile, and `total += tl.sum(totals)` after it; so do maxima and minima.

    A reduction exchanges values between threads and warps, through shared memory and a barrier; one per row is enough where each
    thread keeps its own. Each lane then sums its own column of blocks and the lanes are added in a tree: long sums lose less to rounding.
    """

    name = "defer_reductions"
    exact = False
    when = "Loops over a row reduce each block: norms, losses, dot products of long vectors."
    cites = "Harris, Optimizing parallel reduction in CUDA (2007), sequential addition per thread before the tree."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per loop that reduces in each round."""
        for kernel in source.kernels.values():
            for loop in loops(kernel):
                found = [item for item in map(_running, _lines(loop)) if item is not None]
                for item in found:
                    strategy = (
                        f"{kernel.name} reduces {item.total} once, after the loop over {tree_of(loop.target).body[0].value.id}"  # type: ignore[attr-defined]
                    )
                    yield Site(strategy, partial(_rewrite, source, kernel, loop, item))


def _lines(loop: cst.For) -> list[cst.SimpleStatementLine]:
    block: Any = loop.body
    return [line for line in block.body if isinstance(line, cst.SimpleStatementLine)]


def _running(line: cst.SimpleStatementLine) -> Running | None:
    tree: Any = tree_of(line).body
    if len(tree) != 1:
        return None
    tree = tree[0]
    if isinstance(tree, ast.AugAssign) and isinstance(tree.op, ast.Add) and isinstance(tree.target, ast.Name):
        name, parts = tree.target.id, [tree.value]
    elif isinstance(tree, ast.Assign) and len(tree.targets) == 1 and isinstance(tree.targets[0], ast.Name):
        name, value = tree.targets[0].id, tree.value
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
            parts = [value.left, value.right]
        elif isinstance(value, ast.Call) and (
            called(value) in ("maximum", "minimum") or ast.unparse(value.func) in ("max", "min")
        ):
            parts = value.args
        else:
            return None
        if len(parts) != 2 or not any(isinstance(part, ast.Name) and part.id == name for part in parts):
            return None
        parts = [part for part in parts if not (isinstance(part, ast.Name) and part.id == name)]
    else:
        return None
    call = parts[0] if len(parts) == 1 else None
    kind = "sum" if isinstance(tree, ast.AugAssign) or isinstance(tree.value, ast.BinOp) else _last(tree.value)[:3]
    return Running(line, name, kind, call) if isinstance(call, ast.Call) and called(call) == kind else None


def _last(call: ast.Call) -> str:
    return ast.unparse(call.func).split(".")[-1]


def _rewrite(source: Source, kernel: Kernel, loop: cst.For, item: Running) -> cst.Module:
    axis = argument(item.call, 1, "axis")
    if {word.arg for word in item.call.keywords} - {"axis", "input"} or (
        axis is not None and ast.unparse(axis) not in ("0", "None")
    ):
        raise NotApplicableError(f"{ast.unparse(item.call)} of {kernel.name} is no reduction to one number")
    tile = argument(item.call, 0, "input")
    values = Values(kernel)
    if tile is None or not values.is_float32(tile):
        raise NotApplicableError(f"what {kernel.name} reduces to {item.total} is not certain to be float32")
    extent = values.extent(tile)
    body: Any = loop.body
    if any(item.total in reads(line) | writes(line) for line in body.body if line is not item.line):
        raise NotApplicableError(f"{kernel.name} uses {item.total} within a round")
    if extent not in kernel.constexprs and not extent.isdecimal():
        raise NotApplicableError(f"the extent {extent} of the tile in {kernel.name} is no constexpr")
    tiles = unused(f"{item.total.strip('_')}_tile", source.names)
    text = ast.unparse(tile)
    combine = f"{tiles} + {text}" if item.kind == "sum" else f"tl.{item.kind}imum({tiles}, {text})"
    whole = f"tl.{item.kind}({tiles}, axis=0)"
    total = f"{item.total} + {whole}" if item.kind == "sum" else f"tl.{item.kind}imum({item.total}, {whole})"
    first = f"{tiles} = tl.full([{extent}], {FIRST[item.kind]}, tl.float32)"
    new_loop = partial(_around, first=first, last=f"{item.total} = {total}")
    module = edited(source.module, [(_value(item.line), lambda _: _assigned(f"{tiles} = {combine}")), (loop, new_loop)])
    assert isinstance(module, cst.Module)
    return module


def _value(line: cst.SimpleStatementLine) -> cst.BaseSmallStatement:
    return line.body[0]


def _assigned(text: str) -> cst.BaseSmallStatement:
    return cst.ensure_type(cst.parse_statement(text), cst.SimpleStatementLine).body[0]


def _around(loop: Any, first: str, last: str) -> Any:
    before = cst.ensure_type(cst.parse_statement(first), cst.SimpleStatementLine).with_changes(leading_lines=loop.leading_lines)
    return cst.FlattenSentinel([before, loop.with_changes(leading_lines=[]), cst.parse_statement(last)])
