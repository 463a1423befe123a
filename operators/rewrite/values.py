"""Tells the extent of a kernel's tiles and whether values are float32 for certain, wherever names are assigned."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from operators.source import Kernel, NotApplicableError, argument, called

KEEPS_TYPE = frozenset(
    {"exp", "exp2", "log", "log2", "sqrt", "rsqrt", "abs", "sum", "max", "min", "maximum", "minimum", "where", "fma", "sigmoid"}
    | {"sqrt_rn", "div_rn", "floor", "erf", "tanh", "cos", "sin"}
)  # fmt: skip
"""Functions whose result is as wide as the widest of their (last) operands."""
SHAPES = frozenset({"dot", "dot_scaled", "trans", "permute", "reshape", "view", "ravel", "join", "cat", "interleave", "expand_dims",
                    "broadcast_to", "gather", "histogram", "make_tensor_descriptor", "split"})  # fmt: skip
"""Functions that make tiles of other shapes."""


class Values:
    """What is assigned to the names of a kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._given: dict[str, list[ast.expr | None]] = {}
        for node in ast.walk(kernel.tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._note(target, node.value)
            elif isinstance(node, ast.AnnAssign | ast.AugAssign) and node.value is not None:
                self._note(node.target, node.value, grows=isinstance(node, ast.AugAssign))
            elif isinstance(node, ast.For):
                self._note(node.target, None)

    def _note(self, target: ast.expr, value: ast.expr | None, *, grows: bool = False) -> None:
        if isinstance(target, ast.Name):
            given = self._given.setdefault(target.id, [])
            if not grows or value is None or not given:  # x += y keeps the type of x or widens it
                given.append(value)
        elif isinstance(target, ast.Tuple):
            for item in target.elts:
                self._note(item, None)

    def is_float32(self, expr: ast.expr, seen: frozenset[str] = frozenset()) -> bool:
        """Whether a value is float32 for certain: a cast reaches it, and Triton promotes to the wider operand."""
        if isinstance(expr, ast.Name):
            given = self._given.get(expr.id, [])
            known = expr.id not in self._kernel.parameters and all(value is not None for value in given)
            values = [value for value in given if value is not None]
            return expr.id in seen or (bool(values) and known and all(self.is_float32(item, seen | {expr.id}) for item in values))
        if isinstance(expr, ast.Call) and isinstance(expr.func, ast.Attribute) and expr.func.attr == "to":
            given_type = argument(expr, 0, "dtype")
            return given_type is not None and ast.unparse(given_type) == "tl.float32"
        if isinstance(expr, ast.Call) and called(expr) in ("zeros", "full"):
            dtype = argument(expr, 1 if called(expr) == "zeros" else 2, "dtype")
            return dtype is not None and ast.unparse(dtype) == "tl.float32"
        if isinstance(expr, ast.Call) and called(expr) in KEEPS_TYPE:
            operands = expr.args[1:] if called(expr) == "where" else expr.args
            return any(self.is_float32(item, seen) for item in operands)
        if isinstance(expr, ast.BinOp):
            return self.is_float32(expr.left, seen) or self.is_float32(expr.right, seen)
        return isinstance(expr, ast.UnaryOp | ast.Subscript) and self.is_float32(_inside(expr), seen)

    def behind(self, expr: ast.expr) -> Iterator[ast.AST]:
        """Every node of an expression and of all that its names were assigned."""
        queue: list[ast.AST] = [expr]
        seen: set[str] = set()
        while queue:
            for node in ast.walk(queue.pop()):
                yield node
                if isinstance(node, ast.Name) and node.id not in seen:
                    seen.add(node.id)
                    queue += [value for value in self._given.get(node.id, []) if value is not None]

    def extent(self, expr: ast.expr) -> str:
        """`BLOCK` of a one-dimensional tile over `tl.arange(0, BLOCK)`.

        Raises:
            NotApplicableError: It may have another shape.
        """
        found: set[str] = set()
        for node in self.behind(expr):
            if isinstance(node, ast.Constant) and node.value is None:
                raise NotApplicableError(f"{ast.unparse(expr)} may have more than one axis")
            if called(node) in SHAPES:
                raise NotApplicableError(f"{ast.unparse(expr)} comes from tl.{called(node)}, whose shape is not followed")
            if isinstance(node, ast.Call) and called(node) == "arange":
                found.add(ast.unparse(node.args[1]) if len(node.args) == 2 and ast.unparse(node.args[0]) == "0" else "")
        if len(found) != 1 or "" in found:
            raise NotApplicableError(f"{ast.unparse(expr)} is no tile over one range from 0")
        return found.pop()


def _inside(expr: ast.UnaryOp | ast.Subscript) -> ast.expr:
    return expr.operand if isinstance(expr, ast.UnaryOp) else expr.value
