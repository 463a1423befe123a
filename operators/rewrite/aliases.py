"""Which variables of a wrapper may be one tensor, and whether two kernels access it at the same addresses."""

from __future__ import annotations

import ast
import copy
from collections.abc import Set

import libcst as cst

from evo.syntax import expression_tree
from operators.rewrite.accesses import tree_of
from operators.rewrite.guards import Definitions
from operators.source import Kernel, Launch, Source, code

NEW = ("torch.empty", "torch.zeros", "torch.ones", "torch.full", "torch.rand", "torch.arange")
"""Beginnings of calls that make a tensor of its own."""


class Aliases:
    """Variables of a function in groups: whatever is computed of a variable, except new tensors, may be a view of it."""

    def __init__(self, function: cst.FunctionDef) -> None:
        self._root: dict[str, str] = {}
        for node in ast.walk(tree_of(function)):
            pairs = [pair for item in node.targets for pair in _pairs(item, node.value)] if isinstance(node, ast.Assign) else []
            for target, value in pairs:
                if not ast.unparse(value).startswith(NEW):
                    for item in ast.walk(target):
                        if isinstance(item, ast.Name):
                            self._join(item.id, value)

    def _join(self, name: str, value: ast.expr) -> None:
        for item in ast.walk(value):
            if isinstance(item, ast.Name) and item.id not in ("torch", "triton", "tl"):
                self._root[self.root(name)] = self.root(item.id)

    def root(self, text: str) -> str:
        """One name for all that may share memory with the expression."""
        names = [node.id for node in ast.walk(expression_tree(f"({text.strip()}\n)")) if isinstance(node, ast.Name)]
        name = names[0] if names else text
        while name in self._root and self._root[name] != name:
            name = self._root[name]
        return name


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """What is assigned to what, of a tuple to a tuple one by one."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


def apart(source: Source, kernel: Kernel, written: Set[str], loaded: Set[str]) -> bool:
    """Whether what a kernel stores through some parameters is for certain not what it loads through others, in all launches.

    Empty names, of accesses through something unknown, are apart from nothing. A caller that gives one tensor for two arguments of a
    wrapper is not thought of: kernels that write what they read name it once.
    """
    launches = [launch for launch in source.launches if launch.kernel == kernel.name]
    if "" in written | loaded or not launches or written & loaded:
        return False
    for launch in launches:
        aliases = Aliases(launch.function)
        given = {name: aliases.root(code(item.value)) for name, item in launch.arguments.items()}
        if not written | loaded <= set(given) or {given[name] for name in written} & {given[name] for name in loaded}:
            return False
    return True


class _Resolver(ast.NodeTransformer):
    def __init__(self, kernel: Kernel, launch: Launch) -> None:
        self._definitions, self._launch, self._kernel = Definitions(kernel), launch, kernel

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = self._definitions.step(node)
        if value is not node:
            result: ast.expr = self.visit(copy.deepcopy(value))
            return result
        if node.id in self._kernel.parameters:
            return expression_tree(f"({self._launch.text(node.id).strip()}\n)")
        return node


def in_launch_terms(kernel: Kernel, launch: Launch, node: ast.expr) -> str:
    """An expression of a kernel with names replaced by what they stand for, and parameters by what a launch gives."""
    return ast.unparse(_Resolver(kernel, launch).visit(copy.deepcopy(node)))
