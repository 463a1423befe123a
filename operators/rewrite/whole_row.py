"""Turns loops over blocks of columns into one block that spans the row, so that the row is loaded once and stays in registers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from evo.syntax import module_tree
from operators.edits import edited, instead, replaced, without_unused_knob
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.guards import Cover, Guard, guards
from operators.source import Kernel, NotApplicableError, Source, called, code, find


class WholeRow(Rewrite):
    """The inverse of `online_blocks`: each loop runs once, with a block of the next power of two, and equal loads are merged.

    Rows of up to 2**20 columns compile; the block no longer is a knob. Sums are added in another order, in float32 as before.
    """

    name = "whole_row"
    exact = False
    when = "Rows fit into the registers of a program, so that further passes need not load them again."
    cites = "The inverse of online_blocks; Triton tutorial 02-fused-softmax."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per kernel that loops over a guarded range outside a matrix product."""
        for kernel in source.kernels.values():
            loops = {guard.block: guard for guard in guards(kernel) if guard.cover is Cover.LOOP}
            for guard in loops.values():
                strategy = f"{kernel.name} holds its whole row in one block of {guard.block}"
                yield Site(strategy, partial(_rewrite, source, kernel, guard))


def _rewrite(source: Source, kernel: Kernel, guard: Guard) -> cst.Module:
    if kernel.uses & {"dot", "dot_scaled"}:
        raise NotApplicableError(f"{kernel.name} multiplies matrices, whose operands do not fit in one block")
    if any(other.block == guard.block and (other.cover, other.bound) != (guard.cover, guard.bound) for other in guards(kernel)):
        raise NotApplicableError(f"{guard.block} of {kernel.name} tiles something else too")
    body = _unrolled(kernel, guard)
    edits: list[tuple[cst.CSTNode, Any]] = [(kernel.node.body, lambda block: block.with_changes(body=body))]
    for launch in source.launches_of(kernel):
        old, new = launch.text(guard.block), f"triton.next_power_of_2({launch.text(guard.bound)})"
        for given in launch.arguments.values():
            if given is launch.arguments[guard.block]:
                edits.append((given.value, instead(new)))
            elif "%" in code(given.value):  # a divisibility flag follows its block
                edits.append((given.value, lambda node, old=old, new=new: replaced(node, old, new)))
    module = edited(source.module, edits)
    for text in {launch.text(guard.block) for launch in source.launches_of(kernel)}:
        for read in find(cst.parse_expression(text), cst.Subscript, m.Subscript(value=m.Name("CONFIG"))):
            module = without_unused_knob(module, code(read)[len("CONFIG[") : -1].strip("\"'"))
    assert isinstance(module, cst.Module)
    return module


def _unrolled(kernel: Kernel, guard: Guard) -> list[Any]:
    header = [f"range(0, {guard.bound}, {guard.block})", f"tl.range(0, {guard.bound}, {guard.block})"]
    result: list[Any] = []
    for node in kernel.node.body.body:
        if not isinstance(node, cst.For) or code(node.iter).strip() not in header:
            result.append(node)
            continue
        start = code(node.target)
        moved = f"{start} + tl.arange(0, {guard.block})"
        inner = [_at_zero(statement, start, moved, guard.block) for statement in node.body.body]
        inner[0] = inner[0].with_changes(leading_lines=[*node.leading_lines, *inner[0].leading_lines])
        result += inner
    if any(isinstance(inner, ast.For) for inner in ast.walk(module_tree(cst.Module(result).code))):
        raise NotApplicableError(f"the loops of {kernel.name} do not all step over {guard.bound} by {guard.block}")
    return _without_repeats(result)


def _at_zero(statement: Any, start: str, moved: str, block: str) -> Any:
    statement = replaced(statement, moved, f"tl.arange(0, {block})")
    return replaced(statement, start, "0")


def _without_repeats(body: list[Any]) -> list[Any]:
    """Drops assignments that repeat an earlier one whose inputs and result still hold; loads only where nothing was stored since."""
    result: list[Any] = []
    valid: dict[str, tuple[frozenset[str], bool]] = {}
    comments: list[cst.EmptyLine] = []
    for node in body:
        tree = module_tree(code(node).strip())
        names = [name for name in ast.walk(tree) if isinstance(name, ast.Name)]
        written = frozenset(name.id for name in names if isinstance(name.ctx, ast.Store))
        read = frozenset(name.id for name in names if isinstance(name.ctx, ast.Load))
        calls = {called(call) for call in ast.walk(tree)}
        text = ast.dump(tree)
        if text in valid:
            comments += [line for line in node.leading_lines if line.comment is not None]
            continue
        stores = any(name == "store" or name.startswith("atomic") for name in calls)
        valid = {key: (used, loads) for key, (used, loads) in valid.items() if not written & used and not (loads and stores)}
        if written and not written & read and not stores:
            valid[text] = (written | read, "load" in calls)
        result.append(node.with_changes(leading_lines=[*comments, *node.leading_lines]))
        comments = []
    return result
