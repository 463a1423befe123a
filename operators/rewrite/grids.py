"""Reads the sizes of a grid, and words them so that a launch can pass them to its kernel."""

from __future__ import annotations

from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, expression
from operators.source import Launch, NotApplicableError, assigned, code, find


def single(launch: Launch) -> cst.BaseExpression:
    """The one element of the grid."""
    elements = axes(launch).elements
    if any(code(element.value) != "1" for element in elements[1:]):
        raise NotApplicableError(f"the grid of {launch.kernel} is no tuple of one number")
    return elements[0].value


def sizes(launch: Launch) -> list[cst.BaseExpression]:
    """The elements of the grid, to be read: its name may serve other launches, too."""
    return [element.value for element in _tuple(launch, alone=False).elements]


def axes(launch: Launch) -> cst.Tuple:
    """The grid as a tuple, whose node belongs to this launch alone."""
    return _tuple(launch, alone=True)


def _tuple(launch: Launch, *, alone: bool) -> cst.Tuple:
    slices = cst.ensure_type(launch.call.func, cst.Subscript).slice
    inside = [item.slice.value for item in slices if isinstance(item.slice, cst.Index)]
    node: Any = inside[0] if len(inside) == len(slices) == 1 else None
    if isinstance(node, cst.Name):
        values = assigned(launch.function, node.value) if alone else _last(launch, node.value)
        if len(values) != 1 or (alone and len(find(launch.function, cst.Name, m.Name(node.value))) != 2):
            raise NotApplicableError(f"the grid {node.value} of {launch.kernel} is not made for this launch alone")
        node = values[0]
    node = node.body if isinstance(node, cst.Lambda) else node
    if isinstance(node, cst.Tuple) and node.elements and all(isinstance(item, cst.Element) for item in node.elements):
        return node
    raise NotApplicableError(f"the grid of {launch.kernel} is no tuple of numbers")


def _last(launch: Launch, name: str) -> list[cst.CSTNode]:
    """What a name stands for at a launch: its nearest assignment above, unless a branch or a loop there assigns to it, too."""
    for block in reversed(find(launch.function, cst.IndentedBlock)):  # inner blocks first
        lines: list[Any] = list(block.body)
        place = next((place for place, line in enumerate(lines) if any(call is launch.call for call in find(line, cst.Call))), 0)
        for line in reversed(lines[:place]):
            if find(line, cst.AssignTarget, m.AssignTarget(m.Name(name))):
                return assigned(line, name) if isinstance(line, cst.SimpleStatementLine) else []
    return []


def passable(launch: Launch, rows: cst.BaseExpression) -> str:
    """The number of rows as the launch can pass it: without the parameter of a grid that is a lambda."""
    edits = []
    metas = {function.params.params[0].name.value for function in find(launch.function, cst.Lambda) if function.params.params}
    for read in find(rows, cst.Subscript):
        if code(read.value) in metas:
            edits.append((read, lambda _, read=read: expression(launch.text(code(read.slice[0]).strip("\"'")))))
    result = code(edited(rows, edits))
    if "min(" in result or metas & {name.value for name in find(cst.parse_expression(result), cst.Name)}:
        raise NotApplicableError(f"the grid of {launch.kernel} has a limit already or depends on more than its tile size")
    return result
