"""Lets one program work on several rows: as a two-dimensional tile where that can be derived, else in a loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, instead, unused, with_argument, with_knob, with_parameter
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.guards import Cover, guards
from operators.rewrite.row_tiles import Names, RowTile, assigns
from operators.source import Kernel, Launch, NotApplicableError, Source, assigned, called, code, find, knob_names

DEFAULT_ROWS, ROWS = 4, [1, 2, 4, 8, 16]


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
        body = RowTile(kernel, names).body()
    except NotApplicableError:
        body = _loop(kernel, names)
    edits.append((kernel.node.body, lambda block: block.with_changes(body=body)))
    edits.append((kernel.node, lambda node: with_parameter(node, names.count, constexpr=False)))
    edits.append((kernel.node, lambda node: with_parameter(node, names.rows, constexpr=True)))
    return with_knob(edited(source.module, edits), knob, DEFAULT_ROWS, ROWS)


def _names(source: Source, kernel: Kernel, row: str, program: ast.Call) -> Names:
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
    return Names(row, axis.value, unused("ROWS", source.names), count, mask)


def _launch_edits(launch: Launch, names: Names, knob: str) -> list[tuple[cst.CSTNode, Any]]:
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


def _is_place(kernel: Kernel, row: str, program: ast.Call) -> bool:
    """Whether a row is `tl.program_id`, cast at most: only that can be compared with the number of rows."""
    value = next(line.value for line in kernel.tree.body if isinstance(line, ast.Assign) and assigns(line, row))
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "to":
        value = value.func.value
    return value is program


def _loop(kernel: Kernel, names: Names) -> list[Any]:
    """The loop form: the kernel as it is, once per row."""
    place = next(i for i, line in enumerate(kernel.tree.body) if assigns(line, names.row))
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
