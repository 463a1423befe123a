"""Reads how a kernel sums up a row: by one `tl.sum` of a tile, or round by round in a loop."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst

from operators.rewrite.accesses import reads, tree_of, writes
from operators.source import NotApplicableError, called, find


@dataclass(frozen=True)
class RowSum:
    """A sum that a statement of a block reads, times or divided by something.

    Attributes:
        scale: What stands behind the sum, ``/ n``; empty where nothing does.
        place: Index of the statement of the block that sums up: one with `tl.sum`, or a loop.
        added: The tile that is summed up.
        axis: In source form; empty where the whole tile becomes one number.
        total, line: Where a loop adds up: the name that it adds to, and its statement that does.
        each: The loop reduces the tile in each round.
    """

    scale: str
    place: int
    added: ast.expr
    axis: str
    total: str = ""
    line: Any = None
    each: bool = False


def home(root: cst.CSTNode, node: cst.CSTNode) -> tuple[list[Any], int]:
    """The statements of the innermost block around a node, and which of them holds it."""
    found = [
        (list(block.body), place)
        for block in find(root, cst.IndentedBlock)
        for place, line in enumerate(block.body)
        if any(item is node for item in find(line, type(node)))
    ]
    return found[-1]


def given(lines: Sequence[Any], place: int, name: str) -> tuple[int, ast.expr | None]:
    """Which statement before `place` last writes a name, and the value it gives; None where it is no plain assignment."""
    places = [index for index, line in enumerate(lines[:place]) if name in writes(line)]
    if not places:
        raise NotApplicableError(f"{name} gets its value elsewhere")
    tree: Any = tree_of(lines[places[-1]]).body[0]
    plain = isinstance(tree, ast.Assign) and len(tree.targets) == 1 and ast.unparse(tree.targets[0]) == name
    return places[-1], tree.value if plain else None


def squared(node: ast.expr) -> ast.expr | None:
    """x for `x * x` and `x ** 2`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and ast.dump(node.left) == ast.dump(node.right):
        return node.left
    power = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and ast.unparse(node.right) in ("2", "2.0")
    return node.left if power and isinstance(node, ast.BinOp) else None


def row_sum(lines: Sequence[Any], place: int, node: ast.expr) -> RowSum:
    """Reads what a statement of a block computes from a sum; raises NotApplicableError where it is no scaled sum."""
    scale, used = "", place
    while True:
        if isinstance(node, ast.Name):
            used, value = given(lines, used, node.id)
            if value is None:
                return _looped(lines, used, node.id, scale, None)
            node = value
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Mult) and not scale:
            scale = f"{'/' if isinstance(node.op, ast.Div) else '*'} {_operand(node.right)}"
            _check_steady(lines[used:place], node.right)
            node = node.left
        elif called(node) == "sum" and isinstance(node, ast.Call):
            tile, axis = _reduced(node)
            if isinstance(tile, ast.Name):
                at, value = given(lines, used, tile.id)
                if value is None and isinstance(lines[at], cst.For):
                    return _looped(lines, at, tile.id, scale, axis)
                if value is not None and squared(value) is not None:
                    return RowSum(scale, at, value, axis)
            return RowSum(scale, used, tile, axis)
        else:
            raise NotApplicableError(f"{ast.unparse(node)} is no sum")


def _operand(node: ast.expr) -> str:
    return f"({ast.unparse(node)})" if isinstance(node, ast.BinOp) else ast.unparse(node)


def _check_steady(lines: Sequence[Any], node: ast.expr) -> None:
    names = {item.id for item in ast.walk(node) if isinstance(item, ast.Name)}
    if any(names & writes(line) for line in lines):
        raise NotApplicableError(f"{ast.unparse(node)} changes behind the sum")


def _reduced(node: ast.Call) -> tuple[ast.expr, str]:
    """Tile and axis of a `tl.sum` that keeps no dimension."""
    named = {item.arg: item.value for item in node.keywords}
    axis = node.args[1] if len(node.args) == 2 else named.get("axis", ast.Constant(None))
    if not 1 <= len(node.args) <= 2 or set(named) - {"axis"} or ast.unparse(axis) not in ("None", "0", "1"):
        raise NotApplicableError(f"the shape of {ast.unparse(node)} is not followed")
    return node.args[0], "" if ast.unparse(axis) == "None" else ast.unparse(axis)


def _looped(lines: Sequence[Any], place: int, total: str, scale: str, axis: str | None) -> RowSum:
    """A sum that a loop adds up; `axis` of the reduction behind the loop, None where it reduces in each round."""
    loop: Any = lines[place]
    written = [line for line in loop.body.body if total in writes(line)] if isinstance(loop, cst.For) else []
    tree: Any = tree_of(written[0]).body[0] if len(written) == 1 else None
    added: ast.expr | None = None
    if isinstance(tree, ast.AugAssign) and isinstance(tree.op, ast.Add):
        added = tree.value
    elif isinstance(tree, ast.Assign) and isinstance(tree.value, ast.BinOp) and isinstance(tree.value.op, ast.Add):
        added = tree.value.right if ast.unparse(tree.value.left) == total else None
    if added is None or sum(total in reads(line) for line in loop.body.body) > isinstance(tree, ast.Assign):
        raise NotApplicableError(f"{total} is not added up by one statement of a loop")
    each = axis is None
    if axis is None:
        if not isinstance(added, ast.Call) or called(added) != "sum":
            raise NotApplicableError(f"{total} is no sum of a row")
        added, axis = _reduced(added)
    return RowSum(scale, place, added, axis, total, written[0], each)
