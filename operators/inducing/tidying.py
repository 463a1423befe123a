"""Tidies a generated kernel: names, masks that are always true, second names of one value, constants in place of tensors of them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping

from evo.syntax import expression_tree
from operators.inducing.functions import renamed

PREFIXES = {
    "r0_numel": "rnumel",
    "r0_base": "rbase",
    "r0_index": "rindex",
    "r0_offset": "roffset",
    "r0_mask": "rmask",
    "R0_BLOCK": "RBLOCK",
}
_ELEMENTWISE = (ast.Add, ast.Sub, ast.Mult, ast.Div)


def tidy(kernel: ast.FunctionDef) -> None:
    """Rewrites a kernel in place; it computes the same."""
    names = {node.id for node in ast.walk(kernel) if isinstance(node, ast.Name)} | {item.arg for item in kernel.args.args}
    if "r1_numel" not in names:
        kernel.body = [node for node in kernel.body if not _renames_prefix(node)]
        _drop_second_names(kernel)
        _rename_parameters(kernel, PREFIXES)
        renamed(kernel, PREFIXES)
    _rename_parameters(kernel, {name: _pointer(name) for name in names if _pointer(name) != name})
    renamed(kernel, {name: _pointer(name) for name in names})
    _always_true(kernel)
    _Cast({item.arg for item in kernel.args.args if item.annotation is None and not item.arg.endswith("_ptr")}).visit(kernel)
    _constants(kernel)
    _Batch().visit(kernel)
    _unused(kernel)
    ast.fix_missing_locations(kernel)


def _rename_parameters(kernel: ast.FunctionDef, names: Mapping[str, str]) -> None:
    for item in kernel.args.args:
        item.arg = names.get(item.arg, item.arg)


def _pointer(name: str) -> str:
    """`in_ptr0` → `in0_ptr`, `ks0` → `size0`, `r0_1` → `r1`."""
    found = re.fullmatch(r"(in_out|in|out)_ptr(\d+)", name)
    if found:
        return f"{found[1]}{found[2]}_ptr"
    found = re.fullmatch(r"ks(\d+)", name)
    return f"size{found[1]}" if found else name


def _renames_prefix(node: ast.stmt) -> bool:
    """`rnumel = r0_numel` and the like, in which the new names come for free."""
    return ast.unparse(node).replace(" ", "") in (
        "rnumel=r0_numel",
        "RBLOCK:tl.constexpr=R0_BLOCK",
        "rbase=r0_base",
        "roffset=r0_offset",
        "rindex=r0_index",
    )


def _drop_second_names(kernel: ast.FunctionDef) -> None:
    for node in ast.walk(kernel):
        if isinstance(node, ast.For):
            node.body = [item for item in node.body if not _renames_prefix(item)] or [ast.Pass()]


def _always_true(kernel: ast.FunctionDef) -> None:
    """Takes masks that hold everywhere out of loads and stores."""
    masks = set()
    for body in _bodies(kernel):
        for node in body:
            if isinstance(node, ast.Assign) and re.fullmatch(
                r"tl\.full\(\[.*\], True, tl\.int1\)(\[.*\])?", ast.unparse(node.value)
            ):
                masks |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    stored = Counter(node.id for node in ast.walk(kernel) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    masks = {name for name in masks if stored[name] == 1}
    if masks:
        _Unmasked(masks).visit(kernel)


class _Unmasked(ast.NodeTransformer):
    def __init__(self, masks: set[str]) -> None:
        self._masks = masks

    def _is_true(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self._masks

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.BitAnd):
            for one, other in ((node.left, node.right), (node.right, node.left)):
                if self._is_true(one):
                    return other
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = ast.unparse(node.func)
        place = {"tl.load": 1, "tl.store": 2}.get(name)
        if place is not None and len(node.args) > place and self._is_true(node.args[place]):
            del node.args[place]
            node.keywords = [item for item in node.keywords if item.arg not in ("mask", "other")]
        return node


class _Batch(ast.NodeTransformer):
    """The one scalar among the masks of a batched template, as a tensor of one element: not all interpreters mix the two."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if ast.unparse(node) == "idx_q < BATCH":
            node.left = expression_tree("tl.full([1, 1], idx_q, INDEX_DTYPE)")
        return node


class _Cast(ast.NodeTransformer):
    """`size.to(tl.float32)` → `tl.cast(size, tl.float32)`: a size of 1 is a Python number, which has no such method."""

    def __init__(self, sizes: set[str]) -> None:
        self._sizes = sizes

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Attribute) or node.func.attr != "to" or len(node.args) != 1 or node.keywords:
            return node
        names = {item.id for item in ast.walk(node.func.value) if isinstance(item, ast.Name)}
        if names and names <= self._sizes:
            return ast.Call(expression_tree("tl.cast"), [node.func.value, *node.args], [])
        return node


def _constants(kernel: ast.FunctionDef) -> None:
    """A number in place of a tensor that holds it everywhere, where it is an operand of arithmetic with another float32 tensor."""
    found: dict[str, ast.expr] = {}
    for body in _bodies(kernel):
        for node in body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                match = re.fullmatch(r"tl\.full\(\[[1, ]*\], (-?\d+\.\d*(e[-+]?\d+)?), tl\.float32\)", ast.unparse(node.value))
                if match:
                    found[node.targets[0].id] = expression_tree(match[1])
    uses = Counter(node.id for node in ast.walk(kernel) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    fitting: Counter[str] = Counter()
    for item in ast.walk(kernel):
        if isinstance(item, ast.BinOp) and isinstance(item.op, _ELEMENTWISE):
            for one, other in ((item.left, item.right), (item.right, item.left)):
                if isinstance(one, ast.Name) and one.id in found and not (isinstance(other, ast.Name) and other.id in found):
                    fitting[one.id] += not isinstance(other, ast.Constant)
    folded = {name: value for name, value in found.items() if fitting[name] == uses[name]}
    _Folded(folded).visit(kernel)


class _Folded(ast.NodeTransformer):
    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self._values.get(node.id, node) if isinstance(node.ctx, ast.Load) else node


def _unused(kernel: ast.FunctionDef) -> None:
    """Takes out lines whose value nobody reads, until there are none."""
    while True:
        used = {node.id for node in ast.walk(kernel) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        before = sum(1 for _ in ast.walk(kernel))
        for body in _bodies(kernel):
            body[:] = [node for node in body if not _is_idle(node, used)] or [ast.Pass()]
        if sum(1 for _ in ast.walk(kernel)) == before:
            return


def _is_idle(node: ast.stmt, used: set[str]) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target if isinstance(node, ast.AnnAssign) else None
    if not isinstance(target, ast.Name) or target.id in used:
        return False
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    calls = [ast.unparse(item.func) for item in ast.walk(value or node) if isinstance(item, ast.Call)]
    return not any("atomic" in item or "assert" in item for item in calls)


def _bodies(kernel: ast.AST) -> list[list[ast.stmt]]:
    return [
        body
        for node in ast.walk(kernel)
        for name in ("body", "orelse")
        if isinstance(body := getattr(node, name, None), list) and body
    ]
