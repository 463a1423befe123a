"""Takes `program * stride` out of the addresses of a kernel's stores."""

from __future__ import annotations

import ast
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, instead
from operators.rewrite.accesses import calls_of, derived, expression_of, keyword, positional, reads, writes
from operators.source import Kernel, Launch, NotApplicableError, code, find


def without_row(kernel: Kernel, parameter: str, launch: Launch, stores: list[cst.Call]) -> list[tuple[cst.CSTNode, Any]]:
    """The edits that take `program * stride` out of the addresses, where it stands alone beside the pointer."""
    roots = {name for line in find(kernel.node.body, cst.Assign) if calls_of(line, "program_id") for name in writes(line)}
    moving = derived(kernel, roots)
    found: list[tuple[cst.CSTNode, Any]] = []
    for line in find(kernel.node.body, cst.AugAssign, m.AugAssign(target=m.Name(parameter), operator=m.AddAssign())):
        if _is_row(line.value, moving, launch):
            found.append((line.value, instead("0")))
    once = len(found) == 1
    for store in stores:
        address = positional(store)[0]
        rows = []
        for node in find(address, cst.BinaryOperation, m.BinaryOperation(operator=m.Add())):
            for side, other in ((node.left, node.right), (node.right, node.left)):
                if _is_row(other, moving, launch) and parameter in reads(side):
                    rows.append((node, instead(code(side))))
        if len(rows) + once != 1:
            raise NotApplicableError(f"the row of {parameter} in {kernel.name} is not told by one term program * stride")
        found += rows
        rest, mask = edited(address, rows), keyword(store, "mask")
        if (reads(rest) | (reads(mask) if mask is not None else frozenset())) & (moving - {parameter}):
            raise NotApplicableError(f"programs of {kernel.name} do not all store to the same columns of {parameter}")
    return found


def _is_row(node: cst.BaseExpression, moving: frozenset[str], launch: Launch) -> bool:
    tree = expression_of(node)
    if not isinstance(tree, ast.BinOp) or not isinstance(tree.op, ast.Mult):
        return False
    sides = [tree.left, tree.right]
    strides = [side for side in sides if isinstance(side, ast.Name) and side.id in launch.arguments]
    programs = [side for side in sides if not (isinstance(side, ast.Name) and side.id in launch.arguments)]
    if len(strides) != 1 or len(programs) != 1:
        return False
    names = {item.id for item in ast.walk(programs[0]) if isinstance(item, ast.Name)} - {"tl"}
    plain = isinstance(programs[0], ast.Name) or "program_id" in ast.unparse(programs[0])
    return plain and bool(names <= moving)
