"""Reads loops that add tiles of a row to a float32 tile, round by round."""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.rewrite.accesses import tree_of, writes
from operators.source import Kernel, NotApplicableError, called, find


@dataclass(frozen=True)
class RowPass:
    """A loop over blocks of a row that adds a tile to a float32 tile in each round.

    Attributes:
        loop, line: The loop, and its statement that adds.
        total: What it adds to.
        added: What it adds.
        known: Name → what the body assigns to it.
    """

    loop: cst.For
    line: Any
    total: str
    added: ast.expr
    known: dict[str, ast.expr]


def row_pass(kernel: Kernel, loop: cst.For) -> RowPass:
    """Reads a loop; raises NotApplicableError where it does more than add one tile to another."""
    block: Any = loop.body
    known: dict[str, ast.expr] = {}
    found: RowPass | None = None
    for line in block.body:
        tree: Any = tree_of(line).body
        if len(tree) != 1 or not isinstance(tree[0], ast.Assign | ast.AugAssign):
            raise NotApplicableError(f"a loop of {kernel.name} does more than add up")
        tree = tree[0]
        target = ast.unparse(tree.target if isinstance(tree, ast.AugAssign) else tree.targets[0])
        plus = isinstance(tree.value, ast.BinOp) and isinstance(tree.value.op, ast.Add) and ast.unparse(tree.value.left) == target
        if isinstance(tree, ast.AugAssign) and target in known:  # x += r changes what this round assigned
            grown = ast.BinOp(ast.Name(target, ast.Load()), tree.op, tree.value)
            known[target] = _Inliner({target: known[target]}).visit(grown)
        elif isinstance(tree, ast.AugAssign) or plus:
            added = tree.value if isinstance(tree, ast.AugAssign) else tree.value.right
            if found is not None or (isinstance(tree, ast.AugAssign) and not isinstance(tree.op, ast.Add)):
                raise NotApplicableError(f"a loop of {kernel.name} adds up more than one value")
            found = RowPass(loop, line, target, added, known)
        else:
            earlier = {target: known[target]} if target in known else {}
            known[target] = _Inliner(earlier).visit(copy.deepcopy(tree.value))
    if found is None or called(found.added) == "sum":
        raise NotApplicableError(f"a loop of {kernel.name} adds no tile to a tile: defer_reductions makes it so")
    return found


class _Inliner(ast.NodeTransformer):
    def __init__(self, known: dict[str, ast.expr]) -> None:
        self._known = known

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self._known:
            return node
        rest = {name: value for name, value in self._known.items() if name != node.id}  # x = x.to(…) reads the x before
        result: ast.expr = _Inliner(rest).visit(copy.deepcopy(self._known[node.id]))
        return result


def inlined_in(node: ast.expr, known: dict[str, ast.expr]) -> str:
    """An expression with names replaced by what a round assigned to them."""
    return ast.unparse(_Inliner(known).visit(copy.deepcopy(node)))


def reduction_of(kernel: Kernel, total: str) -> cst.Call:
    """The one `tl.sum(total)`; raises NotApplicableError otherwise."""
    pattern = m.Call(func=m.Attribute(m.Name("tl"), m.Name("sum")), args=[m.Arg(m.Name(total)), m.ZeroOrMore()])
    calls = find(kernel.node.body, cst.Call, pattern)
    if len(calls) != 1:
        raise NotApplicableError(f"{total} of {kernel.name} is not reduced once")
    return calls[0]


def initial_of(kernel: Kernel, total: str) -> Any:
    """The statement that makes a tile float32 zeros; raises NotApplicableError otherwise."""
    lines = [line for line in kernel.node.body.body if isinstance(line, cst.SimpleStatementLine) and total in writes(line)]
    tree: Any = tree_of(lines[0]).body[0] if len(lines) == 1 else None
    value: Any = tree.value if isinstance(tree, ast.Assign) else None
    zero = called(value) == "zeros" or (called(value) == "full" and ast.unparse(value.args[1]) in ("0", "0.0"))
    if value is None or not zero or "float32" not in ast.unparse(value):
        raise NotApplicableError(f"{total} of {kernel.name} does not begin as float32 zeros")
    return lines[0]


def check_uses(kernel: Kernel, mean: RowPass, squares: RowPass) -> None:
    """Raises NotApplicableError where sums are used elsewhere, or what only the second loop assigned is read later."""
    lines = list(kernel.node.body.body)
    later = lines[lines.index(squares.loop) + 1 :]
    for line in later:
        stale = (set(squares.known) - writes(line)) & {n.id for n in ast.walk(tree_of(line)) if isinstance(n, ast.Name)}
        if stale and not isinstance(line, cst.For):
            raise NotApplicableError(f"{kernel.name} uses after its loop what the last round made")
    for side in (mean, squares):
        changes = 3 if isinstance(tree_of(side.line).body[0], ast.AugAssign) else 4
        if len(find(kernel.node.body, cst.Name, m.Name(side.total))) != changes:
            raise NotApplicableError(f"{side.total} of {kernel.name} is used besides its sum")
