"""The body of a kernel divided into what all its rows share and what is done for each, as a loop over rows."""

from __future__ import annotations

import ast
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, instead
from operators.rewrite.memory import bases, stores
from operators.rewrite.repeating import EFFECTS, is_place
from operators.source import Kernel, called, code, find


class RowBody:
    """The statements of a kernel, divided into those that all rows share and the others."""

    def __init__(self, kernel: Kernel, *, shared: bool) -> None:
        self._bases, self._shared = bases(kernel), shared
        self._stored = {base for call, base in self._bases.items() if stores(call)}
        self._lines: list[tuple[ast.stmt, Any]] = list(zip(kernel.tree.body, kernel.node.body.body, strict=False))
        written = [n.id for n in ast.walk(kernel.tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        self._once = {name for name in written if written.count(name) == 1}
        varying = set(written)
        self._outside: list[tuple[ast.stmt, Any]] = []
        for line, node in self._lines:
            assigned_to = (
                line.targets if isinstance(line, ast.Assign) else [line.target] if isinstance(line, ast.AnnAssign) else []
            )
            target = _name(assigned_to[0]) if len(assigned_to) == 1 else ""
            reads = {n.id for n in ast.walk(line) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
            docstring = isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)
            if docstring or (target in self._once and not reads & varying and all(map(self._pure, ast.walk(line)))):
                self._outside.append((line, node))
                varying -= {target}

    def _pure(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            return True
        if called(node) == "load":
            return self._shared and self._bases[node] != "" and not self._stored & {"", self._bases[node]}
        method = isinstance(node.func, ast.Attribute) and node.func.attr == "to"
        return method or _name(node.func) in ("min", "max") or (called(node) != "" and not called(node).startswith(EFFECTS))

    def loads_once(self) -> bool:
        """Whether a shared statement loads."""
        return any(called(node) == "load" for line, _ in self._outside for node in ast.walk(line))

    def looped(self, row: str, steps: str) -> list[Any]:
        """The statements of the new kernel."""
        inside = [item for item in self._lines if item not in self._outside]
        tensor, alias = self._asks_for_tensor(), None
        for item in [] if tensor else inside:
            if isinstance(item[0], ast.Assign) and is_place(item[0].value) and _name(item[0].targets[0]) in self._once:
                alias, row = item, _name(item[0].targets[0])
        block = cst.IndentedBlock(
            [_placed(node, row, tensor=tensor) for line, node in inside if alias is None or line is not alias[0]]
        )
        header = f"for {row} in {steps}:\n    pass"
        loop = cst.ensure_type(cst.parse_statement(header), cst.For)
        if alias is not None:  # comments of the name go to where it is given
            block = block.with_changes(header=alias[1].trailing_whitespace)
            loop = loop.with_changes(leading_lines=alias[1].leading_lines)
        return [*(node for _, node in self._outside), loop.with_changes(body=block)]

    def _asks_for_tensor(self) -> bool:
        """Whether a method is called on the index; Triton's interpreter counts loops in plain integers, which have none."""
        plain: set[str] = set()
        for line, _ in self._lines:
            for node in ast.walk(line):
                parts = list(ast.walk(node.value)) if isinstance(node, ast.Assign | ast.Attribute) else []
                index = any(is_place(n) or _name(n) in plain for n in parts)
                if index and all(is_place(n) for n in parts if isinstance(n, ast.Call)):
                    if isinstance(node, ast.Attribute) and not is_place(node.value):
                        return True
                    plain |= {_name(target) for target in node.targets} if isinstance(node, ast.Assign) else set()
        return False


def _placed(statement: Any, row: str, *, tensor: bool) -> Any:
    """A statement that takes its place from the loop."""
    place = m.Call(func=m.Attribute(m.Name("tl"), m.Name("program_id")))
    new = f"tl.cast({row}, tl.int32)" if tensor else row
    edits: list[tuple[cst.CSTNode, Any]] = [(call, instead(new)) for call in find(statement, cst.Call, place)]
    for cast in find(statement, cst.Call, m.Call(func=m.Attribute(place, m.Name("to")), args=[m.Arg()])):
        edits.append((cast, instead(f"tl.cast({row}, {code(cast.args[0].value)})")))
    return edited(statement, edits)


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""
