"""Drops choices that change nothing: between a masked load and what it gives for masked elements, and one inside another."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, instead
from operators.rewrite.accesses import calls_of, expression_of, positional, times_written, tree_of, writes
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.guards import Definitions
from operators.rewrite.parameters import Edits
from operators.source import Kernel, NotApplicableError, Source, called, code, find

NEUTRAL = {"0", "0.0", "float('-inf')", "-float('inf')", "float('inf')"}
"""Values that are the same in every floating-point type."""


class FlattenWhere(Rewrite):
    """`tl.where(m, tl.load(p, mask=m, other=0.0), 0.0)` becomes the load, and `tl.where(a, tl.where(b, x, y), y)` one choice by `a & b`.

    The load may have a name and a cast to float32 around it; its mask must be the same expression of names that are assigned once, or
    not between the load and the choice, which then stand in one block.
    """

    name = "flatten_where"
    when = "Masks are applied twice, on loading and before a reduction, or once per condition."
    cites = "Boolean algebra; tl.load's parameter `other`, which is what masked elements are."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per kernel."""
        found = [(kernel, choices) for kernel in source.kernels.values() if (choices := _choices(kernel))]
        if not found:
            raise NotApplicableError("no tl.where repeats what a load's mask or another tl.where does")
        for kernel, choices in found:
            yield Site(f"{kernel.name} chooses once by its masks", partial(_rewrite, source, choices))


def _rewrite(source: Source, choices: list[tuple[cst.Call, str]]) -> cst.Module:
    edits: Edits = [(call, instead(f"({text})" if "\n" in text else text)) for call, text in choices]
    texts = {id(call): text for call, text in choices}
    for line in find(
        source.module, cst.SimpleStatementLine, m.SimpleStatementLine([m.Assign(targets=[m.AssignTarget(m.Name())])])
    ):
        made = cst.ensure_type(line.body[0], cst.Assign)
        if texts.get(id(made.value)) == code(made.targets[0].target) and "#" not in code(line):  # it would give a name to itself
            edits.append((line, lambda _: cst.RemoveFromParent()))
    module = edited(source.module, edits)
    assert isinstance(module, cst.Module)
    return module


def _choices(kernel: Kernel) -> list[tuple[cst.Call, str]]:
    """Calls to change and what they become; of nested ones the outermost."""
    found: list[tuple[cst.Call, str]] = []
    definitions, above = Definitions(kernel), _above(kernel)
    inside: set[int] = set()
    for call in calls_of(kernel.node.body, "where"):
        arguments = positional(call)
        if len(arguments) != 3 or len(call.args) != 3 or id(call) in inside:
            continue
        text = _loaded(kernel, arguments, definitions) or _loaded_above(above.get(id(call), []), arguments) or _nested(arguments)
        if text:
            found.append((call, text))
            inside |= {id(other) for other in calls_of(call, "where")}
    return found


def _loaded(kernel: Kernel, arguments: list[cst.BaseExpression], definitions: Definitions) -> str:
    mask, value, other = (expression_of(item) for item in arguments)
    load: Any = definitions.resolve(value)
    if called(load) != "load" or ast.unparse(other) not in NEUTRAL:
        return ""
    given = {item.arg: item.value for item in load.keywords}
    if "mask" not in given or "other" not in given or isinstance(value, ast.Subscript):
        return ""
    same = ast.dump(given["mask"]) == ast.dump(mask) and _number(given["other"]) == _number(other)
    # A name that is assigned twice may have changed between the load and the choice.
    stable = all(times_written(kernel, node.id) <= 1 for node in ast.walk(mask) if isinstance(node, ast.Name))
    return code(arguments[1]) if same and (stable or isinstance(value, ast.Call)) else ""


def _above(kernel: Kernel) -> dict[int, list[Any]]:
    """Choices in statements → the statements before in the same block, nearest first."""
    found: dict[int, list[Any]] = {}
    for block in find(kernel.node.body, cst.IndentedBlock):
        lines: list[Any] = list(block.body)
        for place, line in enumerate(lines):
            if isinstance(line, cst.SimpleStatementLine):
                found |= {id(call): lines[:place][::-1] for call in calls_of(line, "where")}
    return found


def _loaded_above(above: list[Any], arguments: list[cst.BaseExpression]) -> str:
    """As `_loaded`, for a name that has the load from a statement of the same block, since which the mask is the same."""
    mask, value, other = (expression_of(item) for item in arguments)
    if not isinstance(value, ast.Name) or ast.unparse(other) not in NEUTRAL:
        return ""
    steady = {node.id for node in ast.walk(mask) if isinstance(node, ast.Name)}
    for line in above:
        if value.id in writes(line):
            tree = tree_of(line).body[0]
            load: Any = tree.value if isinstance(tree, ast.Assign) and isinstance(tree.targets[0], ast.Name) else None
            while isinstance(load, ast.Call) and isinstance(load.func, ast.Attribute) and load.func.attr == "to":
                load = load.func.value
            given = {item.arg: item.value for item in load.keywords} if called(load) == "load" else {}
            same = "mask" in given and "other" in given and ast.dump(given["mask"]) == ast.dump(mask)
            return value.id if same and _number(given["other"]) == _number(other) and not writes(line) & steady else ""
        if writes(line) & steady:
            return ""
    return ""


def _nested(arguments: list[cst.BaseExpression]) -> str:
    mask, value, other = arguments
    if not m.matches(value, m.Call(func=m.Attribute(m.Name("tl"), m.Name("where")))):
        return ""
    inner = positional(cst.ensure_type(value, cst.Call))
    if len(inner) != 3 or ast.dump(expression_of(inner[2])) != ast.dump(expression_of(other)) or _loads(inner[2]):
        return ""
    return f"tl.where(({code(mask)}) & ({code(inner[0])}), {code(inner[1])}, {code(other)})"


def _loads(node: cst.BaseExpression) -> bool:
    """Whether an expression loads, which may not be done twice or once less."""
    return bool(calls_of(node, "load", "atomic_add", "atomic_max", "atomic_min"))


def _number(node: ast.expr) -> str:
    text = ast.unparse(node)
    return {"0": "0.0", "-float('inf')": "float('-inf')"}.get(text, text)
