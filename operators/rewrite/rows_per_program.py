"""Lets one program work on several rows: as a two-dimensional tile where that can be derived, else in a loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, instead, unused, with_argument, with_knob, with_parameter
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.dataflow import NEUTRAL, UNSPLITTABLE
from operators.rewrite.guards import Cover, arange_block, guards
from operators.source import Kernel, Launch, NotApplicableError, Source, argument, assigned, called, code, find, knob_names

DEFAULT_ROWS, ROWS = 4, [1, 2, 4, 8, 16]


@dataclass(frozen=True)
class _Names:
    row: str
    axis: int
    rows: str
    count: str
    mask: str


class RowsPerProgram(Rewrite):
    """A kernel with one row per program gets `ROWS` of them, a knob; the grid shrinks and a row mask guards the last program.

    Rows stay independent, so no sum changes its order within the loop form; the two-dimensional form reduces along axis 1.
    """

    name = "rows_per_program"
    exact = False
    when = "Rows are short: one per program leaves threads idle or starts too many programs."
    cites = "Triton tutorial 02-fused-softmax (rows per program); TorchInductor's XBLOCK of reductions."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per kernel and form; the loop is offered only where the two-dimensional form cannot be derived."""
        for kernel in source.kernels.values():
            for line in kernel.tree.body:
                row = line.targets[0] if isinstance(line, ast.Assign) else None
                ids = [node for node in ast.walk(line) if isinstance(node, ast.Call) and called(node) == "program_id"]
                if isinstance(row, ast.Name) and len(ids) == 1:
                    strategy = f"each program of {kernel.name} works on several rows"
                    yield Site(strategy, partial(_rewrite, source, kernel, row.id, ids[0]))


def _rewrite(source: Source, kernel: Kernel, row: str, program: ast.Call) -> cst.Module:
    names = _names(source, kernel, row, program)
    edits: list[tuple[cst.CSTNode, Any]] = []
    knob = unused("ROWS", knob_names(source.module))
    for launch in source.launches_of(kernel):
        edits += _launch_edits(launch, names, f'CONFIG["{knob}"]')
    try:
        body = _Tile(kernel, names).body()
    except NotApplicableError:
        body = _loop(kernel, names)
    edits.append((kernel.node.body, lambda block: block.with_changes(body=body)))
    edits.append((kernel.node, lambda node: with_parameter(node, names.count, constexpr=False)))
    edits.append((kernel.node, lambda node: with_parameter(node, names.rows, constexpr=True)))
    return with_knob(edited(source.module, edits), knob, DEFAULT_ROWS, ROWS)


def _names(source: Source, kernel: Kernel, row: str, program: ast.Call) -> _Names:
    axis = program.args[0] if program.args else program.keywords[0].value
    if not isinstance(axis, ast.Constant) or not isinstance(axis.value, int):
        raise NotApplicableError(f"the grid axis of {kernel.name} is no literal")
    others = [node for node in ast.walk(kernel.tree) if called(node) == "program_id" and node is not program]
    if len(kernel.tree.body) != len(kernel.node.body.body):
        raise NotApplicableError(f"{kernel.name} has several statements on a line")
    if any(ast.unparse(other) == ast.unparse(program) for other in others) or "num_programs" in kernel.uses:
        raise NotApplicableError(f"{kernel.name} asks for its place in the grid more than once")
    tiled = any(guard.cover is Cover.PROGRAM for guard in guards(kernel))
    written = sum(isinstance(n, ast.Name) and n.id == row and isinstance(n.ctx, ast.Store) for n in ast.walk(kernel.tree))
    if not _is_place(kernel, row, program):
        raise NotApplicableError(f"{row} of {kernel.name} is computed from its place in the grid, not the place itself")
    if tiled or kernel.uses & {"dot", "dot_scaled"} or written > 1:
        raise NotApplicableError(f"a program of {kernel.name} works on a tile, not on a row")
    count, mask = unused("n_rows", source.names), unused("row_mask", source.names)
    return _Names(row, axis.value, unused("ROWS", source.names), count, mask)


def _launch_edits(launch: Launch, names: _Names, knob: str) -> list[tuple[cst.CSTNode, Any]]:
    """Shrinks the grid, and passes the number of rows and the knob."""
    slices = cst.ensure_type(launch.call.func, cst.Subscript).slice
    elements: list[Any] = [cst.ensure_type(element.slice, cst.Index).value for element in slices]
    node = elements[0]
    if isinstance(node, cst.Name):
        values = assigned(launch.function, node.value)
        if len(values) != 1 or len(find(launch.function, cst.Name, m.Name(node.value))) != 2:
            raise NotApplicableError(f"the grid {node.value} of {launch.kernel} is not made for this launch alone")
        node = values[0]
    if isinstance(node, cst.Lambda):
        node = node.body
    if isinstance(node, cst.Tuple):
        elements = [element.value for element in node.elements]
    if (len(slices) == 1 and not isinstance(node, cst.Tuple)) or names.axis >= len(elements):
        raise NotApplicableError(f"the grid of {launch.kernel} is no tuple")
    rows = elements[names.axis]
    text = code(rows)
    if "meta" in text or "META" in text:
        raise NotApplicableError(f"the grid of {launch.kernel} depends on the configuration")

    def wider(call: cst.Call) -> cst.Call:
        return with_argument(with_argument(call, names.count, text), names.rows, knob)

    return [(rows, instead(f"triton.cdiv({text}, {knob})")), (launch.call, wider)]


class _Tile:
    """The two-dimensional form: rows are [ROWS, 1], columns [1, BLOCK], and broadcasting does the rest."""

    def __init__(self, kernel: Kernel, names: _Names) -> None:
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
        place = next(i for i, line in enumerate(self._kernel.tree.body) if _assigns(line, self._names.row))
        mask = cst.parse_statement(f"{self._names.mask} = {self._names.row} < {self._names.count}")
        return [*body[: place + 1], mask, *body[place + 1 :]]

    def _edit(self, call: cst.Call) -> Any:
        tree = ast.parse(code(call).strip(), mode="eval").body
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
                value = ast.parse(code(assign.value).strip(), mode="eval").body
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


def _is_place(kernel: Kernel, row: str, program: ast.Call) -> bool:
    """Whether a row is `tl.program_id`, cast at most: only that can be compared with the number of rows."""
    value = next(line.value for line in kernel.tree.body if isinstance(line, ast.Assign) and _assigns(line, row))
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "to":
        value = value.func.value
    return value is program


def _assigns(line: ast.stmt, name: str) -> bool:
    return isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == name


def _loop(kernel: Kernel, names: _Names) -> list[Any]:
    """The loop form: the kernel as it is, once per row."""
    place = next(i for i, line in enumerate(kernel.tree.body) if _assigns(line, names.row))
    body: list[Any] = list(kernel.node.body.body)
    inner = kernel.tree.body[place + 1 :]
    stored = {n.id for line in inner for n in ast.walk(line) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    before = {n.id for line in kernel.tree.body[:place] for n in ast.walk(line) if isinstance(n, ast.Name)}
    if any(isinstance(n, ast.Return) for line in inner for n in ast.walk(line)) or stored & (before | set(kernel.parameters)):
        raise NotApplicableError(f"{kernel.name} changes its arguments or returns early")
    counter = unused("row_in_program", {n.id for n in ast.walk(kernel.tree) if isinstance(n, ast.Name)})
    call = find(body[place], cst.Call, m.Call(func=m.Attribute(attr=m.Name("program_id"))))[0]
    text = f"tl.program_id({names.axis}) * {names.rows} + {counter}"
    definition = kernel.tree.body[place]
    alone = isinstance(definition, ast.Assign) and called(definition.value) == "program_id"
    row = edited(body[place], [(call, instead(text if alone else f"({text})"))])
    guard = cst.ensure_type(cst.parse_statement(f"if {names.row} < {names.count}:\n    pass"), cst.If)
    loop = cst.ensure_type(cst.parse_statement(f"for {counter} in range(0, {names.rows}):\n    pass"), cst.For)
    guard = guard.with_changes(body=cst.IndentedBlock(body[place + 1 :]))
    return [*body[:place], loop.with_changes(body=cst.IndentedBlock([row, guard]))]
