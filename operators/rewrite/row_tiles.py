"""A kernel with one row per program as one with a tile of rows: the two-dimensional form."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

import libcst as cst
import libcst.matchers as m

from evo.syntax import expression_tree
from operators.edits import edited, instead, with_argument
from operators.rewrite.dataflow import NEUTRAL, UNSPLITTABLE
from operators.rewrite.guards import arange_block
from operators.source import Kernel, NotApplicableError, argument, called, code, find


@dataclass(frozen=True)
class Names:
    """Those of a row, of its grid axis, and of what is new: rows per program, count of rows, mask of rows."""

    row: str
    axis: int
    rows: str
    count: str
    mask: str


class RowTile:
    """The two-dimensional form: rows are [ROWS, 1], columns [1, BLOCK], and broadcasting does the rest."""

    def __init__(self, kernel: Kernel, names: Names) -> None:
        self._kernel, self._names = kernel, names
        forbidden = (UNSPLITTABLE - {"atomic_cas", "debug_barrier"}) | {
            "expand_dims",
            "broadcast_to",
            "static_print",
            "inline_asm_elementwise",
        }
        if forbidden & kernel.uses or any(isinstance(n, ast.Subscript) for n in ast.walk(kernel.tree)):
            raise NotApplicableError(f"{kernel.name} shapes its tiles itself")
        self._by_row = {names.row}
        self._blocks = {b for n in ast.walk(kernel.tree) if isinstance(n, ast.Call) and (b := arange_block(n))}
        if len([n for n in ast.walk(kernel.tree) if called(n) == "arange"]) != len(
            [n for n in ast.walk(kernel.tree) if isinstance(n, ast.Call) and arange_block(n)]
        ):
            raise NotApplicableError(f"{kernel.name} has an arange that does not start at 0")
        self._spread()
        self._check_control()

    def _depends(self, node: ast.AST) -> bool:
        return any(isinstance(name, ast.Name) and name.id in self._by_row for name in ast.walk(node))

    def _spread(self) -> None:
        """Finds all names that differ between rows."""
        size = -1
        while size != len(self._by_row):
            size = len(self._by_row)
            for node in ast.walk(self._kernel.tree):
                if isinstance(node, ast.Assign | ast.AugAssign) and self._depends(node.value):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    self._by_row |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}

    def _check_control(self) -> None:
        for node in ast.walk(self._kernel.tree):
            test = (
                node.test
                if isinstance(node, ast.If | ast.While | ast.IfExp)
                else node.iter
                if isinstance(node, ast.For)
                else None
            )
            if test is not None and self._depends(test):
                raise NotApplicableError(f"the control flow of {self._kernel.name} differs between rows")
            if called(node).startswith("atomic"):
                raise NotApplicableError(f"{self._kernel.name} has atomics, whose masks are its own")

    def body(self) -> list[Any]:
        """The statements of the new kernel."""
        edits: list[tuple[cst.CSTNode, Any]] = []
        for call in find(self._kernel.node.body, cst.Call, m.Call(func=m.Attribute())):
            edit = self._edit(call)
            if edit is not None:
                edits.append((call, edit))
        edits += self._carried()
        body = list(edited(self._kernel.node.body, edits).body)
        place = next(i for i, line in enumerate(self._kernel.tree.body) if assigns(line, self._names.row))
        mask = cst.parse_statement(f"{self._names.mask} = {self._names.row} < {self._names.count}")
        return [*body[: place + 1], mask, *body[place + 1 :]]

    def _edit(self, call: cst.Call) -> Any:
        tree = expression_tree(code(call).strip())
        assert isinstance(tree, ast.Call)
        kind, names = called(tree), self._names
        if kind == "program_id" and ast.unparse(argument(tree, 0, "axis") or tree) == str(names.axis):
            text = f"(tl.program_id({names.axis}) * {names.rows} + tl.arange(0, {names.rows}))[:, None]"
            return instead(text)
        if kind == "arange":
            return lambda node: cst.parse_expression(f"{code(node)}[None, :]")
        if kind in NEUTRAL:
            extra = {keyword.arg for keyword in tree.keywords} - {"axis"}
            if extra or len(tree.args) > 2:
                raise NotApplicableError(f"{ast.unparse(tree)} is no plain reduction")
            return _along_columns
        if kind in ("load", "store") and self._depends(tree.args[0]):
            return lambda node: _masked(node, names.mask)
        if kind == "store":
            raise NotApplicableError(f"{self._kernel.name} stores where no row shows")
        if kind in ("zeros", "full"):
            shape = ast.unparse(tree.args[0]).strip("[](),")
            if shape not in self._blocks:
                raise NotApplicableError(f"{ast.unparse(tree)} has a shape of its own")
            first = call.args[0].value
            return lambda node: edited(node, [(node.args[0].value, instead(f"[{names.rows}, {shape}]"))]) if first else node
        return None

    def _carried(self) -> list[tuple[cst.CSTNode, Any]]:
        """Scalars that a loop turns into one value per row must have that shape before it."""
        edits: list[tuple[cst.CSTNode, Any]] = []
        inside = {
            name.id
            for loop in ast.walk(self._kernel.tree)
            if isinstance(loop, ast.For | ast.While)
            for name in ast.walk(loop)
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
        } & self._by_row
        for line in self._kernel.node.body.body:
            assign = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
            if isinstance(assign, cst.Assign) and code(assign.targets[0].target) in inside:
                value = expression_tree(code(assign.value).strip())
                if not self._depends(value) and called(value) not in ("zeros", "full"):
                    text = ast.unparse(value)
                    if "." not in text and "float" not in text:
                        raise NotApplicableError(f"{text} before a loop of {self._kernel.name} is no float")
                    full = f"tl.full([{self._names.rows}, 1], {text}, tl.float32)"
                    edits.append((assign.value, instead(full)))
        return edits


def _along_columns(call: cst.Call) -> cst.Call:
    text = f"f({code(call.args[0].value)}, axis=1, keep_dims=True)"
    arguments = cst.ensure_type(cst.parse_expression(text), cst.Call).args
    return call.with_changes(args=[arguments[0], *arguments[1:]])


def _masked(call: cst.Call, row_mask: str) -> cst.Call:
    for given in call.args:
        if given.keyword is not None and given.keyword.value == "mask":
            text = code(given.value)
            text = text if isinstance(given.value, cst.Name) else f"({text})"
            mask = cst.parse_expression(f"{text} & {row_mask}")
            return call.with_changes(args=[a.with_changes(value=mask) if a is given else a for a in call.args])
    if len(call.args) > (1 if code(call.func) == "tl.load" else 2):
        raise NotApplicableError(f"{code(call)} gives its mask by position")
    return with_argument(call, "mask", row_mask)


def assigns(line: ast.stmt, name: str) -> bool:
    """Whether a statement assigns to a name alone."""
    return isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == name
