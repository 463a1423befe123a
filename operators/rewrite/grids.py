"""Reads the size of a one-dimensional grid, and words it so that a launch can pass it to its kernel."""

from __future__ import annotations

from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, expression
from operators.source import Launch, NotApplicableError, assigned, code, find


def single(launch: Launch) -> cst.BaseExpression:
    """The one element of the grid."""
    slices = cst.ensure_type(launch.call.func, cst.Subscript).slice
    node: Any = slices[0].slice.value if len(slices) == 1 and isinstance(slices[0].slice, cst.Index) else None
    if isinstance(node, cst.Name):
        values = assigned(launch.function, node.value)
        if len(values) != 1 or len(find(launch.function, cst.Name, m.Name(node.value))) != 2:
            raise NotApplicableError(f"the grid {node.value} of {launch.kernel} is not made for this launch alone")
        node = values[0]
    node = node.body if isinstance(node, cst.Lambda) else node
    if not isinstance(node, cst.Tuple) or any(code(element.value) != "1" for element in node.elements[1:]):
        raise NotApplicableError(f"the grid of {launch.kernel} is no tuple of one number")
    return node.elements[0].value


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
