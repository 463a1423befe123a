"""Tells outside of which mask a tile is zero, and how many elements that mask leaves: what sums over a row rely on."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst

from evo.syntax import expression_tree
from operators.rewrite.accesses import positional, tree_of, writes
from operators.rewrite.guards import Definitions
from operators.source import Kernel, NotApplicableError, argument, called, code


def zero_beyond(lines: Sequence[Any], place: int, node: ast.expr) -> str:
    """The mask outside of which an expression is zero just before a statement of a block; empty where nothing masks it.

    A masked load without `other` counts as zero there, as whoever sums it up must think.

    Args:
        lines: Statements of the block, compound ones among them.
        place: Index of the statement.
        node: What is asked about.

    Raises:
        NotApplicableError: It is not told by the block's loads, or the mask's names have other values at the statement.
    """
    if isinstance(node, ast.Name):
        return _of_name(lines, place, node.id)
    if called(node) == "load":
        mask, other = argument(node, 1, "mask"), argument(node, 2, "other")  # type: ignore[arg-type]
        if mask is not None and other is not None and not is_zero(other):
            raise NotApplicableError(f"{ast.unparse(other)}, not zero, stands beyond {ast.unparse(mask)}")
        return "" if mask is None else ast.unparse(mask)
    if called(node) == "where" and isinstance(node, ast.Call) and len(node.args) == 3 and is_zero(node.args[2]):
        return ast.unparse(node.args[0])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "to" and not called(node):
        return zero_beyond(lines, place, node.func.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        return _same(zero_beyond(lines, place, node.left), zero_beyond(lines, place, node.right))
    raise NotApplicableError(f"what is beyond {ast.unparse(node)} is not told by loads")


def _of_name(lines: Sequence[Any], place: int, name: str) -> str:
    places = [index for index, line in enumerate(lines[:place]) if name in writes(line)]
    tree: Any = tree_of(lines[places[-1]]).body[0] if places else None
    if isinstance(tree, ast.Assign) and ast.unparse(tree.targets[0]) == name:
        found = zero_beyond(lines, places[-1], tree.value)
    elif isinstance(tree, ast.AugAssign) and isinstance(tree.op, ast.Add | ast.Sub):
        found = _same(_of_name(lines, places[-1], name), zero_beyond(lines, places[-1], tree.value))
    else:
        raise NotApplicableError(f"what is beyond {name} is not told by loads")
    named = {node.id for node in ast.walk(expression_tree(found)) if isinstance(node, ast.Name)} if found else set()
    if any(named & writes(line) for line in lines[places[-1] : place]):
        raise NotApplicableError(f"the mask of {name} has another value where it is summed up")
    return found


def _same(first: str, second: str) -> str:
    if first != second:
        raise NotApplicableError(f"what is summed up has two masks, {first or 'none'} and {second or 'none'}")
    return first


def is_zero(node: ast.expr) -> bool:
    """Whether an expression is the number zero."""
    return ast.unparse(node) in ("0", "0.0")


def counts(kernel: Kernel, mask: str, scale: str, loop: cst.For | None) -> bool:
    """Whether a row has n elements, which a tile, or a loop over tiles, covers: of `/ n`, or `* inverse` with the inverse `1 / n`.

    Args:
        kernel: Where this is.
        mask: Outside of which tiles are zero.
        scale: By what the sum over the row is scaled.
        loop: Over the tiles; None where there is one tile.
    """
    words = _Words(kernel)
    count = words.of(scale[2:])
    if scale.startswith("*"):
        inverse = isinstance(count, ast.BinOp) and isinstance(count.op, ast.Div) and ast.unparse(count.left) in ("1", "1.0")
        if not inverse:
            return False
        count = count.right  # type: ignore[attr-defined]
    row = _row(words, mask)
    if row is None or row.bound != ast.unparse(count):
        return False
    return not row.starts if loop is None else _number(words, loop, row.starts, row.bound, row.block) is not None


@dataclass(frozen=True)
class Rounds:
    """A loop over tiles that follow each other from 0 to the end of a row.

    Attributes:
        bound, block: Elements of the row and of a tile, in source form.
        number: Which round it is, from 1.
    """

    bound: str
    block: str
    number: str


def rounds(kernel: Kernel, mask: str, loop: cst.For) -> Rounds | None:
    """Reads a loop whose tiles a mask ends at the row's end; None where tiles or mask are others."""
    words = _Words(kernel)
    row = _row(words, mask)
    number = None if row is None else _number(words, loop, row.starts, row.bound, row.block)
    return None if row is None or number is None else Rounds(row.bound, row.block, number)


@dataclass(frozen=True)
class _Row:
    """The parts of `starts + tl.arange(0, block) < bound`, without names of one value."""

    starts: list[str]
    block: str
    bound: str


def _row(words: _Words, mask: str) -> _Row | None:
    guard: Any = words.of(mask or "None")
    if not isinstance(guard, ast.Compare) or len(guard.ops) != 1 or not isinstance(guard.ops[0], ast.Lt):
        return None
    terms = _terms(guard.left)
    blocks = [ast.unparse(item.args[1]) for item in terms if _is_range(item)]
    rest = [ast.unparse(item) for item in terms if not _is_range(item)]
    return _Row(rest, blocks[0], ast.unparse(guard.comparators[0])) if len(blocks) == 1 else None


class _Words(ast.NodeTransformer):
    """Expressions without names of one value, casts, and tiles of one value."""

    def __init__(self, kernel: Kernel) -> None:
        self._definitions = Definitions(kernel)

    def of(self, text: str) -> ast.expr:
        found: ast.expr = self.visit(expression_tree(text))
        return found

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = self._definitions.step(node)
        return node if value is node else self.of(ast.unparse(value))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        plain = self._definitions.step(node)
        value = argument(node, 1, "value") if called(node) == "full" else None if plain is node else plain
        return self.generic_visit(node) if value is None else self.of(ast.unparse(value))


def _terms(node: ast.expr) -> list[Any]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _terms(node.left) + _terms(node.right)
    return [node]


def _is_range(node: ast.expr) -> bool:
    return called(node) == "arange" and isinstance(node, ast.Call) and len(node.args) == 2 and is_zero(node.args[0])


def _number(words: _Words, loop: cst.For, starts: list[str], count: str, block: str) -> str | None:
    """Which round it is, from 1, of a loop over tiles that start there; None unless they follow each other from 0 to the row's end."""
    if not isinstance(loop.iter, cst.Call) or code(loop.iter.func) not in ("range", "tl.range"):
        return None
    bounds = [ast.unparse(words.of(code(item))) for item in positional(loop.iter)]
    step = code(loop.target)
    if bounds == ["0", count, block] and starts == [step]:
        return f"{step} // {block} + 1"
    rounds = f"tl.cdiv({count}, {block})"
    counted = bounds in ([rounds], ["0", rounds]) and starts in ([f"{step} * {block}"], [f"{block} * {step}"])
    return f"{step} + 1" if counted else None
