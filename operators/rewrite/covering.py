"""Tells whether a grid ends where the tiles of a bound do, so that no tile starts beyond it."""

from __future__ import annotations

import ast

import libcst as cst
import libcst.matchers as m

from evo.syntax import expression_tree
from operators.rewrite.guards import Guard
from operators.source import Kernel, Launch, code, find


def covers_exactly(launch: Launch, kernel: Kernel, guard: Guard) -> bool:
    """Whether grid or kernel count the tiles of the bound, so that no tile starts beyond it."""
    if f"tl.cdiv({guard.bound}, {guard.block})" in ast.unparse(kernel.tree):
        return True
    sizes = {launch.text(guard.block)} | {f"{name}['{guard.block}']" for name in ("meta", "META")}
    wanted = {f"triton.cdiv({_plain(launch.text(guard.bound))}, {_plain(size)})" for size in sizes}
    divisions = find(launch.function, cst.Call, m.Call(func=m.Attribute(m.Name("triton"), m.Name("cdiv"))))
    return any(_plain(code(call)) in wanted for call in divisions)


def _plain(text: str) -> str:
    return ast.unparse(expression_tree(text.strip()))


def operand(text: str) -> str:
    """An expression that can stand beside an operator."""
    node = expression_tree(text)
    return text if isinstance(node, ast.Name | ast.Attribute | ast.Subscript | ast.Call | ast.Constant) else f"({text})"
