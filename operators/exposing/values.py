"""Numbers that are written down: literals, and products, sums and powers of them."""

from __future__ import annotations

import ast


def number(node: ast.AST | None) -> int | None:
    """The value of an integer expression of literals alone; None for any other."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if not isinstance(node, ast.BinOp):
        return None
    left, right = number(node.left), number(node.right)
    if left is None or right is None:
        return None
    match node.op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult() if abs(left) < 2**32 and abs(right) < 2**32:
            return left * right
        case ast.FloorDiv() if right:
            return left // right
        case ast.Pow() if 0 <= left <= 16 and 0 <= right <= 16:
            return int(left**right)
        case ast.LShift() if 0 <= left <= 16 and 0 <= right <= 16:
            return left << right
    return None


def alike(one: ast.AST, other: ast.AST) -> bool:
    """Whether two expressions read the same."""
    return ast.dump(one) == ast.dump(other)
