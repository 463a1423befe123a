"""Finds the comparisons that keep a kernel's tiles inside their bounds, e.g. `pid * BLOCK + tl.arange(0, BLOCK) < n`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from operators.source import called


class Kernel(Protocol):
    """What is asked of a kernel: its definition, with `tl` for Triton's language, and its parameters."""

    @property
    def tree(self) -> ast.FunctionDef:
        """The definition."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names in order."""

    @property
    def constexprs(self) -> frozenset[str]:
        """Those annotated `tl.constexpr`."""


class Cover(StrEnum):
    """How a tile gets over its range."""

    WHOLE = "whole"
    """One tile from 0, wide enough for all of it."""
    PROGRAM = "program"
    """Each program has its own tile: `pid * BLOCK + tl.arange(0, BLOCK)`."""
    LOOP = "loop"
    """A loop steps over it: `start + tl.arange(0, BLOCK)` for start in `range(0, n, BLOCK)`."""


@dataclass(frozen=True)
class Guard:
    """A comparison `offsets < bound` that fails only in the last tile, where `bound` is no multiple of `block`.

    Attributes:
        compare: The comparison.
        bound: Kernel parameter.
        block: Constexpr parameter.
        cover: How the tiles cover [0, bound).
    """

    compare: ast.Compare
    bound: str
    block: str
    cover: Cover


class Definitions:
    """What the names of a kernel stand for, where they stand for one thing.

    Attributes:
        parameters: Of the kernel.
        loops: Name → what a loop gives it.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.parameters = frozenset(kernel.parameters)
        writes: dict[str, int] = dict.fromkeys(kernel.parameters, 1)
        values: dict[str, list[ast.expr]] = {}
        loops: dict[str, list[ast.expr]] = {}
        for node in ast.walk(kernel.tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                writes[node.id] = writes.get(node.id, 0) + 1
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                values.setdefault(node.targets[0].id, []).append(node.value)
            if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
                loops.setdefault(node.target.id, []).append(node.iter)
        self._values = _agreed(values, writes)
        self.loops = _agreed(loops, writes)

    def resolve(self, node: ast.expr) -> ast.expr:
        """The expression behind names, and behind subscripts and casts that only change a tile's shape or integer type."""
        for _ in range(20):
            before, node = node, self.step(node)
            if node is before:
                break
        return node

    def step(self, node: ast.expr) -> ast.expr:
        """One step of `resolve`; the node itself where there is none."""
        if isinstance(node, ast.Name) and node.id in self._values:
            return self._values[node.id]
        if isinstance(node, ast.Subscript) and _only_reshapes(node.slice):
            return node.value
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "to":
            return node.func.value
        return node


def _agreed(found: dict[str, list[ast.expr]], writes: dict[str, int]) -> dict[str, ast.expr]:
    """Names that get one expression only, be it several times (in several passes over a row)."""
    return {
        name: nodes[0]
        for name, nodes in found.items()
        if len(nodes) == writes[name] and len({ast.dump(node) for node in nodes}) == 1
    }


def _only_reshapes(node: ast.expr) -> bool:
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return all(isinstance(part, ast.Slice) or (isinstance(part, ast.Constant) and part.value is None) for part in parts)


def arange_block(node: ast.AST) -> str:
    """`BLOCK` for `tl.arange(0, BLOCK)`, else empty."""
    if isinstance(node, ast.Call) and called(node) == "arange" and len(node.args) == 2 and not node.keywords:
        low, high = node.args
        if isinstance(low, ast.Constant) and low.value == 0 and isinstance(high, ast.Name):
            return high.id
    return ""


def guards(kernel: Kernel) -> Iterator[Guard]:
    """All guards of a kernel, in source order."""
    definitions = Definitions(kernel)
    compares = [node for node in ast.walk(kernel.tree) if isinstance(node, ast.Compare)]
    for node in sorted(compares, key=lambda item: (item.lineno, item.col_offset)):
        guard = read_guard(node, kernel, definitions)
        if guard is not None:
            yield guard


def read_guard(node: ast.expr, kernel: Kernel, definitions: Definitions) -> Guard | None:
    """The guard a comparison is, if it is one."""
    if not isinstance(node, ast.Compare) or len(node.ops) != 1 or not isinstance(node.ops[0], ast.Lt):
        return None
    terms, bound = _terms(node.left, definitions), node.comparators[0]
    if isinstance(bound, ast.BinOp) and isinstance(bound.op, ast.Sub):  # offsets < n - start
        terms, bound = [*terms, *_terms(bound.right, definitions)], bound.left
    if not isinstance(bound, ast.Name) or bound.id not in kernel.parameters:
        return None
    blocks = [arange_block(term) for term in terms]
    block = next((name for name in blocks if name in kernel.constexprs), "")
    starts = [term for term, name in zip(terms, blocks, strict=True) if not name]
    if not block or len(starts) != len(terms) - 1 or len(starts) > 1:
        return None
    cover = Cover.WHOLE if not starts else _cover(starts[0], bound.id, block, kernel, definitions)
    return None if cover is None else Guard(node, bound.id, block, cover)


def _terms(node: ast.expr, definitions: Definitions, depth: int = 0) -> list[ast.expr]:
    node = definitions.resolve(node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and depth < 8:
        return _terms(node.left, definitions, depth + 1) + _terms(node.right, definitions, depth + 1)
    return [node]


def _cover(start: ast.expr, bound: str, block: str, kernel: Kernel, definitions: Definitions) -> Cover | None:
    if isinstance(start, ast.Name) and start.id in definitions.loops:
        steps = (f"range(0, {bound}, {block})", f"tl.range(0, {bound}, {block})")
        return Cover.LOOP if ast.unparse(definitions.loops[start.id]) in steps else None
    if isinstance(start, ast.BinOp) and isinstance(start.op, ast.Mult):
        factors = [definitions.resolve(start.left), definitions.resolve(start.right)]
        others = [factor for factor in factors if not (isinstance(factor, ast.Name) and factor.id == block)]
        if len(others) != 1:
            return None
        count = f"tl.cdiv({bound}, {block})"
        if isinstance(others[0], ast.Name) and others[0].id in definitions.loops:
            counts = (f"range({count})", f"range(0, {count})", f"tl.range({count})", f"tl.range(0, {count})")
            return Cover.LOOP if ast.unparse(definitions.loops[others[0].id]) in counts else None
        swizzled = count in ast.unparse(kernel.tree)  # such tile indices are derived from the count of tiles
        return Cover.PROGRAM if called(others[0]) == "program_id" or swizzled else None
    return None
