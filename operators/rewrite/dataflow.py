"""Who reads what in a straight-line kernel body: definitions, tiles, reductions and the passes over a row they need."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from evo.syntax import module_tree
from operators.source import NotApplicableError, argument, called, code

NEUTRAL = {"sum": "0.0", "max": 'float("-inf")', "min": 'float("inf")'}
"""Reductions that can run block by block, and where each starts."""

UNSPLITTABLE = frozenset(
    {
        "dot", "dot_scaled", "cumsum", "cumprod", "associative_scan", "reduce", "argmax", "argmin", "sort", "topk", "flip",
        "gather", "histogram", "xor_sum", "reduce_or", "trans", "permute", "reshape", "view", "ravel", "split", "join",
        "interleave", "cat", "debug_barrier", "make_block_ptr", "advance", "atomic_cas",
    }
)  # fmt: skip
"""Calls whose result for one block of columns is not the block of their result."""


@dataclass
class Line:
    """A statement of a kernel's body.

    Attributes:
        node, tree: To edit and to analyse.
        reads, writes: Names; a compound statement also reads what it may leave unwritten.
        sources: Read name → index of the line that defines it; parameters and globals are absent.
        tile: Its values have one element per column.
        reduction: ``sum``, ``max`` or ``min`` where the line is `name = tl.sum(tile, …)`.
        level: Passes over the row that must be over before it can run. A reduction of level L is computed in pass L - 1.
    """

    node: Any
    tree: ast.stmt
    reads: frozenset[str]
    writes: frozenset[str]
    sources: dict[str, int] = field(default_factory=dict)
    tile: bool = False
    reduction: str = ""
    level: int = 0

    @property
    def name(self) -> str:
        """The one name a reduction assigns."""
        return next(iter(self.writes))

    @property
    def value(self) -> ast.expr | None:
        """Right-hand side of `name = value`."""
        return self.tree.value if isinstance(self.tree, ast.Assign) and isinstance(self.tree.targets[0], ast.Name) else None

    @property
    def stores(self) -> bool:
        """Whether it writes memory."""
        return any(called(node) == "store" or called(node).startswith("atomic") for node in ast.walk(self.tree))


def line(node: Any) -> Line:
    """Reads one statement; raises NotApplicableError where its effect cannot be followed."""
    tree = module_tree(code(node).strip()).body
    if len(tree) != 1 or any(isinstance(n, ast.For | ast.While | ast.Return | ast.With) for n in ast.walk(tree[0])):
        raise NotApplicableError("the kernel has a loop, a return or several statements on a line")
    loads: set[str] = set()
    stores: set[str] = set()
    for name in ast.walk(tree[0]):
        if isinstance(name, ast.Name):
            (stores if isinstance(name.ctx, ast.Store) else loads).add(name.id)
    compound = not isinstance(tree[0], ast.Assign | ast.Expr)
    return Line(node, tree[0], frozenset(loads | stores if compound else loads), frozenset(stores))


def connect(lines: Sequence[Line], is_column: Callable[[ast.AST], bool]) -> None:
    """Fills in `sources`, `tile`, `reduction` and `level`.

    Args:
        lines: In order, reductions already on lines of their own.
        is_column: Whether a node is the arange over the columns.
    """
    latest: dict[str, int] = {}
    for index, item in enumerate(lines):
        item.sources = {name: latest[name] for name in sorted(item.reads) if name in latest}
        latest.update(dict.fromkeys(item.writes, index))
        inputs = [lines[source] for source in item.sources.values()]
        item.level = max((source.level for source in inputs), default=0)
        item.tile = any(source.tile for source in inputs) or any(map(is_column, ast.walk(item.tree)))
        reductions = [called(node) for node in ast.walk(item.tree) if called(node) in NEUTRAL]
        if item.tile and reductions:
            if item.value is None or called(item.value) not in NEUTRAL or len(reductions) > 1:
                raise NotApplicableError("a reduction stands inside a compound statement")
            item.tile, item.reduction, item.level = False, reductions[0], item.level + 1


def closure(lines: Sequence[Line], wanted: Iterable[int]) -> list[int]:
    """The tile lines that must be repeated to get at the given lines, themselves included if they are tiles, in order."""
    found: set[int] = set()
    queue = list(wanted)
    while queue:
        index = queue.pop()
        if index not in found:
            found.add(index)
            queue += [source for source in lines[index].sources.values() if lines[source].tile]
    return sorted(index for index in found if lines[index].tile)


class _Inliner(ast.NodeTransformer):
    def __init__(self, sources: dict[str, int], lines: Sequence[Line]) -> None:
        self._sources, self._lines = sources, lines

    def visit_Name(self, node: ast.Name) -> ast.expr:
        source = self._sources.get(node.id)
        if source is None:
            return node
        value = self._lines[source].value
        if self._lines[source].tile and value is not None:
            return inlined(value, self._lines[source].sources, self._lines)
        return ast.Name(f"{node.id}__{source}", ast.Load())


def inlined(expr: ast.expr, sources: dict[str, int], lines: Sequence[Line]) -> ast.expr:
    """The expression with tiles replaced by what they were assigned; other names get the line that defines them."""
    result = _Inliner(sources, lines).visit(copy.deepcopy(expr))
    assert isinstance(result, ast.expr)
    return result


def is_wide(expr: ast.expr, sources: dict[str, int], lines: Sequence[Line]) -> bool:
    """Whether a value is float32 for certain: an explicit cast reaches it, and Triton promotes to the wider operand."""
    if isinstance(expr, ast.Name):
        item = lines[sources[expr.id]] if expr.id in sources else None
        if item is None:
            return False
        if item.value is not None:
            return bool(item.reduction) or is_wide(item.value, item.sources, lines)
        # In a compound statement, every branch must assign such a value.
        values = [n.value for n in ast.walk(item.tree) if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == expr.id]
        return bool(values) and all(is_wide(value, item.sources, lines) for value in values)
    if isinstance(expr, ast.Call) and isinstance(expr.func, ast.Attribute) and expr.func.attr == "to":
        return bool(expr.args) and ast.unparse(expr.args[0]) == "tl.float32"
    if isinstance(expr, ast.Call) and called(expr) and called(expr) != "load":
        operands = expr.args[1:] if called(expr) == "where" else expr.args
        return any(is_wide(child, sources, lines) for child in operands)
    if isinstance(expr, ast.BinOp):
        return is_wide(expr.left, sources, lines) or is_wide(expr.right, sources, lines)
    return isinstance(expr, ast.UnaryOp) and is_wide(expr.operand, sources, lines)


def check_memory(lines: Sequence[Line]) -> None:
    """Raises NotApplicableError where a tile is stored over memory that is loaded from elsewhere in the row."""
    accesses: dict[str, list[tuple[str, str]]] = {}
    for item in lines:
        for node in ast.walk(item.tree):
            kind = called(node)
            pointer = argument(node, 0, "pointer") if isinstance(node, ast.Call) and kind in ("load", "store") else None
            if pointer is not None and item.tile:
                address = inlined(pointer, item.sources, lines)
                accesses.setdefault(_base(address), []).append((kind, ast.unparse(address)))
    for base, found in accesses.items():
        if {kind for kind, _ in found} == {"load", "store"} and len({address for _, address in found}) > 1:
            raise NotApplicableError(f"the kernel stores through {base} and loads other elements through it")


def _base(node: ast.expr) -> str:
    while isinstance(node, ast.BinOp):
        node = node.left
    return ast.unparse(node)
