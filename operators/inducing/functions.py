"""Writes Inductor's functions and the device library's as Triton's language where it has them, and else as plain functions."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from evo.syntax import expression_tree, module_tree
from operators.inducing.plain_math import PLAIN

SAME = {
    "exp": "exp", "exp2": "exp2", "log": "log", "log2": "log2", "sqrt": "sqrt_rn", "rsqrt": "rsqrt", "sin": "sin", "cos": "cos",
    "erf": "erf", "abs": "abs", "fabs": "abs", "floor": "floor", "ceil": "ceil", "fma": "fma",
}  # fmt: skip
"""Function of the device library → that of `tl`."""

LIBRARIES = ("libdevice", "tl_math", "math")


class Functions(ast.NodeTransformer):
    """Replaces calls in kernels, and collects the functions that a module then needs.

    Args:
        library: Source of the functions that Inductor's kernels call by `triton_helpers`.

    Attributes:
        definitions: Name → source of a function with its decorator, in an order in which each stands after what it calls.
        device_library: Some function of the device library has no other form here.
    """

    def __init__(self, library: str) -> None:
        tree = module_tree(library)
        self._library = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self.definitions: dict[str, str] = {}
        self.device_library = False

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replaces what has another form as a call."""
        called = ast.unparse(node.func)
        if called in ("triton_helpers.maximum", "triton_helpers.minimum") and len(node.args) == 2:
            node.func = _parsed(f"tl.{called.partition('.')[2]}")
            node.keywords = [ast.keyword("propagate_nan", _parsed("tl.PropagateNan.ALL"))]
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) and node.func.value.id in LIBRARIES:
            return self._of_device(node, node.func.attr)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Replaces a function that is named without being called, such as what a reduction combines with."""
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == "triton_helpers":
            if node.attr in PLAIN:
                return ast.Name(self._plain(node.attr), ast.Load())
            return ast.Name(self._own(node.attr), ast.Load())
        return node

    def _of_device(self, node: ast.Call, name: str) -> ast.AST:
        if name in SAME:
            return ast.Call(_parsed(f"tl.{SAME[name]}"), node.args, node.keywords)
        if name in ("isnan", "isinf"):
            return ast.Call(ast.Name(self._plain(name), ast.Load()), node.args, [])
        if name in PLAIN:
            return ast.Call(ast.Name(self._plain(name), ast.Load()), node.args, node.keywords)
        self.device_library = True
        return ast.Call(_parsed(f"libdevice.{name}"), node.args, node.keywords)

    def _plain(self, name: str) -> str:
        text = PLAIN[name]
        for other in PLAIN:
            if other != name and f" {other}(" in text.split(":", 1)[1]:
                self._plain(other)
        ours = text.split("def ", 1)[1].split("(", 1)[0]
        self.definitions.setdefault(ours, text)
        return ours

    def _own(self, name: str) -> str:
        """A function of Inductor's own, taken over with what it calls."""
        ours = f"{name}_"
        if ours not in self.definitions and name in self._library:
            node = module_tree(ast.unparse(self._library[name])).body[0]
            assert isinstance(node, ast.FunctionDef)
            node.name = ours
            node.decorator_list = []
            node.body = [item for item in node.body if not _is_docstring(item)]
            renames = {
                other: self._plain(other) if other in PLAIN else self._own(other)
                for other in _called(node)
                if other in self._library and other != name
            }
            _Renamed(renames).visit(node)
            self.visit(node)
            self.definitions[ours] = "@triton.jit\n" + ast.unparse(ast.fix_missing_locations(node))
        return ours


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Name(self._names.get(node.id, node.id), node.ctx), node)


def renamed(node: ast.AST, names: Mapping[str, str]) -> ast.AST:
    """The node with variables renamed."""
    return _Renamed(names).visit(node)  # type: ignore[no-any-return]


def _called(node: ast.AST) -> Iterable[str]:
    return dict.fromkeys(item.id for item in ast.walk(node) if isinstance(item, ast.Name))


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _parsed(text: str) -> ast.expr:
    return expression_tree(text)
