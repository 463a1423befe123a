"""Has Triton's interpreter read kernels as its compiler does where Python's own rules differ: lists are tuples, and ``a += b`` rebinds.

To Python a list can be changed, and ``+=`` changes it for all who hold it; to the compiler there are only values. A kernel that can see the
difference could compute one thing when it is interpreted and another one when it is compiled.
"""

from __future__ import annotations

import ast
from typing import Any


class AsCompiled:
    """Stands where Triton's `FunctionRewriter` has its transformer of syntax trees.

    Args:
        transformer: Triton's own.
    """

    def __init__(self, transformer: ast.NodeTransformer) -> None:
        self._transformer = transformer

    def visit(self, tree: ast.AST) -> Any:
        """The tree of a kernel, transformed."""
        # Rebinding comes last: Triton's transformer makes tensors of what is assigned, but not of what is added to.
        return _Rebinding().visit(self._transformer.visit(_Tuples().visit(tree)))


class _Tuples(ast.NodeTransformer):
    def visit_List(self, node: ast.List) -> ast.expr:
        self.generic_visit(node)
        return ast.copy_location(ast.Tuple(node.elts, node.ctx), node) if isinstance(node.ctx, ast.Load) else node


class _Rebinding(ast.NodeTransformer):
    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name):
            return node
        value = ast.BinOp(ast.Name(node.target.id, ast.Load()), node.op, node.value)
        return ast.copy_location(ast.Assign([node.target], value), node)
