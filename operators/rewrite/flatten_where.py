"""Drops choices that change nothing: between a masked load and what it gives for masked elements, and one inside another."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, instead
from operators.rewrite.accesses import calls_of, expression_of, positional, times_written
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.guards import Definitions
from operators.source import Kernel, NotApplicableError, Source, called, code

NEUTRAL = {"0", "0.0", "float('-inf')", "-float('inf')", "float('inf')"}
"""Values that are the same in every floating-point type."""


class FlattenWhere(Rewrite):
    """`tl.where(m, tl.load(p, mask=m, other=0.0), 0.0)` becomes the load, and `tl.where(a, tl.where(b, x, y), y)` one choice by `a & b`.

    The load may have a name and a cast to float32 around it; its mask must be the same expression of names assigned once.
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
    module = edited(source.module, [(call, instead(f"({text})" if "\n" in text else text)) for call, text in choices])
    assert isinstance(module, cst.Module)
    return module


def _choices(kernel: Kernel) -> list[tuple[cst.Call, str]]:
    """Calls to change and what they become; of nested ones the outermost."""
    found: list[tuple[cst.Call, str]] = []
    definitions = Definitions(kernel)
    inside: set[int] = set()
    for call in calls_of(kernel.node.body, "where"):
        arguments = positional(call)
        if len(arguments) != 3 or len(call.args) != 3 or id(call) in inside:
            continue
        text = _loaded(kernel, arguments, definitions) or _nested(arguments)
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
