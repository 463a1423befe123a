"""Follows exponents back through a kernel to the scalars that scale them."""

from __future__ import annotations

import ast
import re
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.source import Kernel, code, find

LOG2_E = "1.4426950408889634"

MAX_SCALAR_DEPTH = 8

INVARIANT = re.compile(r"-?float\(['\"][+-]?inf(inity)?['\"]\)|[+-]?0(\.0*)?")
"""What no positive factor changes."""

SELECTING = {
    "maximum": slice(0, 2),
    "minimum": slice(0, 2),
    "max": slice(0, 1),
    "min": slice(0, 1),
    "where": slice(1, 3),
    "full": slice(1, 2),
}
"""Functions of `tl` that return elements of some of their arguments, and which these are."""


def function_name(call: cst.Call) -> str:
    """`exp` for `tl.exp(…)` and `tl.math.exp(…)`, empty for calls of other things than functions of `tl`."""
    text = code(call.func).strip()
    return text.rsplit(".", 1)[-1] if re.fullmatch(r"tl(\.math)?\.\w+", text) else ""


def exponentials(root: cst.CSTNode) -> list[cst.Call]:
    """Every `tl.exp` of one argument."""
    calls = find(root, cst.Call, m.Call(args=[m.Arg(star="", keyword=None)]))
    return [call for call in calls if function_name(call) == "exp"]


def product(factor: Any, number: str) -> cst.BinaryOperation:
    """A factor times a number; what binds weaker than a product gets parentheses."""
    loose = cst.BinaryOperation | cst.BooleanOperation | cst.Comparison | cst.IfExp | cst.NamedExpr | cst.Lambda
    if isinstance(factor, loose) and not factor.lpar and not m.matches(factor, m.BinaryOperation(operator=m.Multiply())):
        factor = factor.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return cst.BinaryOperation(factor, cst.Multiply(), cst.Float(number))


def scaled(scale: cst.BaseExpression) -> cst.BinaryOperation:
    """A scalar with the factor log2(e)."""
    return product(scale, LOG2_E).with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


class Exponents:
    """A group of exponentials whose exponents must have one unit, because they share values.

    Names count for the whole kernel, wherever they are written, so control flow needs no thought. Casts end the search: a scale
    with the factor, rounded to a narrow type, may be off where the scale alone was exact.

    Attributes:
        scales: By identity, the scalars at which all of them are scaled.
        calls: Identities of the exponentials.
    """

    def __init__(self, kernel: Kernel, *, launched: bool) -> None:
        """Reads a kernel; parameters of one that is `launched` are pointers and scalars, those of others may be tensors."""
        self.scales: dict[int, cst.BaseExpression] = {}
        self.calls: set[int] = set()
        self._body = kernel.node.body
        self._parameters = frozenset(kernel.parameters)
        self._scalars = self._parameters if launched else frozenset[str]()
        self._names: set[str] = set()
        self._followed: set[int] = set()
        self._writes = [n.id for n in ast.walk(kernel.tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        self._values: dict[str, list[cst.BaseExpression]] = {}
        for item in find(self._body, cst.Assign, m.Assign(targets=[m.AssignTarget(m.Name())])):
            self._values.setdefault(cst.ensure_type(item.targets[0].target, cst.Name).value, []).append(item.value)

    def follow(self, call: cst.Call) -> bool:
        """Whether the exponent, and all that shares values with it, is scaled by scalars and goes nowhere else."""
        self.calls.add(id(call))
        if not self._in_unit(call.args[0].value):
            return False
        known = -1
        while known != len(self._names):  # other exponents and comparisons with these names bring more names in
            known = len(self._names)
            for other in exponentials(self._body):
                if self._mentions(other.args[0].value):
                    self.calls.add(id(other))
                    if not self._in_unit(other.args[0].value):
                        return False
            for compare in find(self._body, cst.Comparison):
                sides = [compare.left, *(part.comparator for part in compare.comparisons)]
                if self._mentions(compare) and not all(map(self._in_unit, sides)):
                    return False
        return bool(self.scales) and self._followed >= self._reads()

    def _mentions(self, node: cst.CSTNode) -> bool:
        return any(name.value in self._names for name in find(node, cst.Name))

    def _reads(self) -> set[int]:
        """Identities of all places that read a name of the group."""
        others = {id(item.target) for item in find(self._body, cst.AssignTarget)}
        others |= {id(item.attr) for item in find(self._body, cst.Attribute)}
        others |= {id(item.keyword) for item in find(self._body, cst.Arg)}
        return {id(name) for name in find(self._body, cst.Name) if name.value in self._names} - others

    def _in_unit(self, node: cst.BaseExpression) -> bool:
        """Whether a value changes its unit as a whole when the scales do; notes the scales and names it depends on."""
        if INVARIANT.fullmatch(code(node).strip()):
            return True
        match node:
            case cst.Name():
                return self._name_in_unit(node)
            case cst.BinaryOperation(operator=cst.Add() | cst.Subtract()):
                return self._in_unit(node.left) and self._in_unit(node.right)
            case cst.BinaryOperation(operator=cst.Multiply()):
                scale = next((side for side in (node.right, node.left) if self._is_scalar(side)), None)
                if scale is not None:
                    self.scales[id(scale)] = scale
                return scale is not None
            case cst.UnaryOperation(operator=cst.Minus()):
                return self._in_unit(node.expression)
            case cst.IfExp():
                return self._in_unit(node.body) and self._in_unit(node.orelse)
            case cst.Subscript():
                return all(code(item).strip(" ,") in (":", "None") for item in node.slice) and self._in_unit(node.value)
            case cst.Call():
                return self._call_in_unit(node)
            case _:
                return False

    def _name_in_unit(self, node: cst.Name) -> bool:
        name, values = node.value, self._values.get(node.value, [])
        self._followed.add(id(node))
        if name in self._names:
            return True
        if name in self._parameters or not values or self._writes.count(name) != len(values):
            return False
        self._names.add(name)
        return all(map(self._in_unit, values))

    def _call_in_unit(self, call: cst.Call) -> bool:
        choice = SELECTING.get(function_name(call))
        if choice is None or "return_indices" in code(call):
            return False
        chosen = call.args[choice]
        plain = all(item.keyword is None and not item.star for item in call.args[: choice.stop])
        return len(call.args) >= choice.stop and plain and all(self._in_unit(item.value) for item in chosen)

    def _is_scalar(self, node: cst.BaseExpression, depth: int = 0) -> bool:
        match node:
            case cst.Integer() | cst.Float():
                return True
            case cst.Name(value=name) if name in self._writes:
                values = self._values.get(name, []) if name not in self._parameters and depth < MAX_SCALAR_DEPTH else []
                return len(values) == self._writes.count(name) == 1 and self._is_scalar(values[0], depth + 1)
            case cst.Name(value=name):
                return name in self._scalars
            case cst.UnaryOperation(operator=cst.Minus()):
                return self._is_scalar(node.expression, depth)
            case cst.BinaryOperation(operator=cst.Add() | cst.Subtract() | cst.Multiply() | cst.Divide()):
                return self._is_scalar(node.left, depth) and self._is_scalar(node.right, depth)
            case _:
                return False
