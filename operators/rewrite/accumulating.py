"""Reads a kernel that is one loop which adds to one accumulator, so that its rounds can be divided among programs."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.rewrite.accesses import calls_of, keyword, loops, positional, reads, tree_of, writes
from operators.source import Kernel, NotApplicableError, called, code, find

DOCSTRING = m.SimpleStatementLine([m.Expr(m.SimpleString())])


@dataclass(frozen=True)
class Accumulation:
    """The parts of such a kernel.

    Attributes:
        before, after: Statements around the loop.
        loop: It has `low`, `high` and `step`, in source form.
        accumulator: Its name.
        shape: Its extents, constexprs or numbers in source form.
        moved: Pointer that each round moves → by what.
    """

    before: tuple[Any, ...]
    loop: cst.For
    after: tuple[Any, ...]
    low: str
    high: str
    step: str
    accumulator: str
    shape: tuple[str, ...]
    moved: dict[str, str]


def accumulation(kernel: Kernel) -> Accumulation:
    """Reads a kernel; raises NotApplicableError where it has another form, or its rounds depend on each other."""
    lines: list[Any] = list(kernel.node.body.body)
    places = [index for index, line in enumerate(lines) if isinstance(line, cst.For)]
    if (
        len(places) != 1
        or len(loops(kernel)) != 1
        or any(isinstance(node, ast.While | ast.Return) for node in ast.walk(kernel.tree))
    ):
        raise NotApplicableError(f"{kernel.name} is not one loop between straight lines")
    loop, before, after = lines[places[0]], lines[: places[0]], lines[places[0] + 1 :]
    if any(_writes_memory(line) for line in [*before, loop]):
        raise NotApplicableError(f"{kernel.name} writes memory before its loop ends")
    low, high, step = _bounds(kernel, loop)
    carried = _carried(kernel, loop)
    outside = frozenset().union(*(reads(line) for line in after)) if after else frozenset()
    moved, sums = {}, []
    for name in sorted(carried):
        if _is_moved(loop, name):
            moved[name] = _step_of(kernel, loop, name)
        else:
            sums.append(name)
    if len(sums) != 1:
        raise NotApplicableError(f"the loop of {kernel.name} carries {len(sums)} values besides pointers it moves, not one sum")
    if outside & (writes(loop) - {sums[0]}):
        raise NotApplicableError(f"{kernel.name} uses after its loop what the last round made")
    _check_sum(kernel, loop, sums[0])
    return Accumulation(tuple(before), loop, tuple(after), low, high, step, sums[0], _shape(kernel, before, sums[0]), moved)


def _writes_memory(line: cst.CSTNode) -> bool:
    return any(called(node) == "store" or called(node).startswith("atomic") for node in ast.walk(tree_of(line)))


def _bounds(kernel: Kernel, loop: cst.For) -> tuple[str, str, str]:
    given = [f"({code(item)})" if not isinstance(item, cst.Name | cst.Integer | cst.Call) else code(item)
             for item in positional(cst.ensure_type(loop.iter, cst.Call))]  # fmt: skip
    if not 1 <= len(given) <= 3:
        raise NotApplicableError(f"the bounds of the loop of {kernel.name} cannot be read")
    low, high = ("0", given[0]) if len(given) == 1 else given[:2]
    return low, high, given[2] if len(given) == 3 else "1"


def _carried(kernel: Kernel, loop: cst.For) -> set[str]:
    """Names whose value one round leaves to the next."""
    carried: set[str] = set()
    known = {code(loop.target)}
    written = writes(loop)
    block: Any = loop.body
    for line in block.body:
        if not isinstance(line, cst.SimpleStatementLine):
            raise NotApplicableError(f"the loop of {kernel.name} has branches")
        augmented = {code(item.target) for item in find(line, cst.AugAssign)}
        carried |= ((reads(line) | augmented) & written) - known
        known |= writes(line)
    return carried


def _is_moved(loop: cst.For, name: str) -> bool:
    """Whether a name only changes by `name += step`, and not by a product or a load."""
    changes = [line for line in find(loop, cst.AugAssign) if code(line.target) == name]
    if len(changes) != 1 or not m.matches(changes[0].operator, m.AddAssign()):
        return False
    return (
        not writes(loop) & reads(changes[0].value)
        and not calls_of(changes[0].value, "load", "dot", "sum")
        and _is_address(loop, name)
    )


def _is_address(loop: cst.For, name: str) -> bool:
    return any(name in reads(positional(call)[0]) for call in calls_of(loop, "load") if positional(call)) or any(
        name in reads(mask) for call in calls_of(loop, "load") for mask in [keyword(call, "mask")] if mask is not None
    )


def _step_of(kernel: Kernel, loop: cst.For, name: str) -> str:
    return next(code(line.value) for line in find(loop, cst.AugAssign) if code(line.target) == name)


def _check_sum(kernel: Kernel, loop: cst.For, name: str) -> None:
    """Raises NotApplicableError unless the one change of a name adds something to it that does not depend on it."""
    block: Any = loop.body
    lines = [line for line in block.body if name in writes(line) | reads(line)]
    tree: Any = tree_of(lines[0]).body[0]
    value: Any = getattr(tree, "value", None)
    added: ast.expr | None = None
    if isinstance(tree, ast.AugAssign) and isinstance(tree.op, ast.Add):
        added = value
    elif isinstance(tree, ast.Assign) and called(value) == "dot" and len(value.args) == 3:
        added = ast.Tuple(value.args[:2], ast.Load()) if ast.unparse(value.args[2]) == name else None
    elif isinstance(tree, ast.Assign) and isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        added = value.right if ast.unparse(value.left) == name else None
    if len(lines) != 1 or added is None or any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(added)):
        raise NotApplicableError(f"{name} of {kernel.name} is no plain sum over the rounds")


def _shape(kernel: Kernel, before: list[Any], name: str) -> tuple[str, ...]:
    """The extents of an accumulator that begins as float32 zeros; raises NotApplicableError otherwise."""
    first = [tree_of(line).body[0] for line in before if name in writes(line)]
    value: Any = first[0].value if len(first) == 1 and isinstance(first[0], ast.Assign) else None
    wide = value is not None and called(value) == "zeros" and "tl.float32" in ast.unparse(value)
    shape = value.args[0] if wide and value.args else None
    if not isinstance(shape, ast.Tuple | ast.List):
        raise NotApplicableError(f"{name} of {kernel.name} does not begin as float32 zeros of a known shape")
    extents = tuple(ast.unparse(item) for item in shape.elts)
    if len(extents) > 2 or not all(item.isdecimal() or item in kernel.constexprs for item in extents):
        raise NotApplicableError(f"the shape of {name} of {kernel.name} is none of constexprs")
    return extents
