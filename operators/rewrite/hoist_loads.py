"""Moves loads of what does not change in a loop before the loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited
from operators.rewrite.accesses import calls_of, expression_of, keyword, loops, reads, times_written, writes
from operators.rewrite.aliases import apart
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.memory import bases, stores
from operators.source import Kernel, NotApplicableError, Source, code, find

LOADED = m.SimpleStatementLine([m.Assign(targets=[m.AssignTarget(m.Name())])])
READ_ONLY = frozenset({"load", "arange", "cdiv", "cast"})
"""Calls of `tl` that a statement to be moved may make."""


class HoistLoads(Rewrite):
    """`w = tl.load(p + offsets, mask=m)` in a loop none of whose rounds changes `p`, `offsets` or `m` moves before the loop.

    The load must have a mask, so that it may run where the loop would not, and the loop must not store where it loads. The value
    then stays in registers throughout the loop.
    """

    name = "hoist_loads"
    when = "A loop over rows or blocks loads the same weights, bias or scale in each round."
    cites = (
        "Loop-invariant code motion (Aho, Lam, Sethi, Ullman, Compilers, section 9.5); compilers leave loads where stores follow."
    )

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per loop with such loads."""
        found = False
        for kernel in source.kernels.values():
            for loop in loops(kernel):
                lines = _invariant(source, kernel, loop)
                if lines:
                    found = True
                    strategy = f"{kernel.name} loads what its loop over {code(loop.target)} shares before it"
                    yield Site(strategy, partial(_rewrite, source, loop, lines))
        if not found:
            raise NotApplicableError("no loop has a masked load that is the same in each round")


def _invariant(source: Source, kernel: Kernel, loop: cst.For) -> list[Any]:
    """Statements to move, in order: what masked loads that no round changes need, and these loads."""
    block: Any = loop.body
    changing = set(writes(loop))
    moved: list[Any] = []
    for line in block.body:
        if not m.matches(line, LOADED):
            continue
        (name,) = writes(line) or {""}
        if (
            reads(line) & changing
            or times_written(kernel, name) != 1
            or not _pure(line)
            or not _may_load(source, kernel, loop, line)
        ):
            continue
        changing -= {name}
        moved.append(line)
    while moved and not calls_of(moved[-1], "load"):  # offsets of nothing that is loaded
        moved.pop()
    return moved


def _pure(line: cst.CSTNode) -> bool:
    for call in find(line, cst.Call):
        name = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        if name not in READ_ONLY | {"to"} or (name == "load" and keyword(call, "mask") is None):
            return False
    return True


def _may_load(source: Source, kernel: Kernel, loop: cst.For, line: cst.CSTNode) -> bool:
    """Whether nothing the loop stores can be what the statement loads."""
    texts = {code(call) for call in calls_of(line, "load")}
    if not texts:
        return True
    inside = code(loop)
    if not any(word in inside for word in ("store(", "atomic")):
        return True
    return apart(source, kernel, {base for call, base in bases(kernel).items() if stores(call)}, _bases_of(kernel, line))


def _bases_of(kernel: Kernel, line: cst.CSTNode) -> set[str]:
    """The parameters a statement loads through."""
    wanted = {ast.dump(expression_of(call)) for call in calls_of(line, "load")}
    return {base for call, base in bases(kernel).items() if ast.dump(call) in wanted}


def _rewrite(source: Source, loop: cst.For, lines: list[Any]) -> cst.Module:
    def edit(node: Any) -> Any:
        kept = [line for line in node.body.body if not any(line is item for item in lines)]
        if not kept:
            raise NotApplicableError(f"nothing would be left of the loop over {code(loop.target)}")
        first, *others = lines
        first = first.with_changes(leading_lines=[*node.leading_lines, *_comments(first.leading_lines)])
        rest = node.with_changes(body=node.body.with_changes(body=kept), leading_lines=[])
        return cst.FlattenSentinel([first, *others, rest])

    module = edited(source.module, [(loop, edit)])
    assert isinstance(module, cst.Module)
    return module


def _comments(lines: Any) -> list[Any]:
    return [line for line in lines if line.comment is not None]
