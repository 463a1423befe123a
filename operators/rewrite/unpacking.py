"""Tells how many parts a launch unpacks from a tuple, and which keys from a dictionary."""

from __future__ import annotations

from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.source import Kernel, assigned, code, find

STRIDES = m.Call(func=m.Attribute(value=m.Name() | m.Attribute(value=m.Name()), attr=m.Name("stride")), args=[])


def lengths_of(function: cst.FunctionDef, kernel: Kernel, call: cst.Call) -> dict[int, int]:
    """How many parts each starred argument of a launch has, by the argument's identity; those that are not told are left out.

    Where only one is not told, the parameters that the launch must give beside the others tell it.
    """
    starred = [item for item in call.args if item.star == "*"]
    found = {id(item): length for item in starred if (length := _length(function, item.value)) is not None}
    rest = {code(item.value).strip() for item in starred if id(item) not in found}
    missing = [item for item in starred if id(item) not in found]
    given = sum(not item.star and item.keyword is None for item in call.args) + sum(found.values())
    tables = [keys_of(function, item.value) for item in call.args if item.star == "**"]
    named = [item.keyword.value for item in call.args if item.keyword is not None] + [key for keys in tables for key in keys]
    defaults = bool(kernel.tree.args.defaults)
    if len(rest) == 1 and not defaults and not kernel.decorated and all(tables):
        left = len(kernel.parameters) - given - sum(name in kernel.parameters for name in named)
        if left > 0 and left % len(missing) == 0 and m.matches(missing[0].value, STRIDES):
            found |= {id(item): left // len(missing) for item in missing}
    return {id(item): found[id(item)] for item in starred if id(item) in found and "#" not in code(item.value)}


def _length(function: cst.FunctionDef, node: cst.BaseExpression) -> int | None:
    if isinstance(node, cst.Tuple):
        return None if any(isinstance(item, cst.StarredElement) for item in node.elements) else len(node.elements)
    if isinstance(node, cst.IfExp):
        first, second = _length(function, node.body), _length(function, node.orelse)
        plain = isinstance(node.body, cst.Tuple) and isinstance(node.orelse, cst.Tuple) and not find(node.test, cst.Call)
        return first if plain and first == second else None
    if isinstance(node, cst.Name):
        values = assigned(function, node.value)
        stores = [item for item in find(function, cst.Name, m.Name(node.value)) if _is_target(function, item)]
        lengths = {_told(function, value) for value in values}
        return lengths.pop() if len(lengths) == 1 and len(values) == len(stores) else None
    return _strides(function, node) if m.matches(node, STRIDES) else None


def _told(function: cst.FunctionDef, value: cst.CSTNode) -> int | None:
    """As `_length`, of what a name is assigned, whose parts are not taken from the expression."""
    if isinstance(value, cst.IfExp):
        first, second = _told(function, value.body), _told(function, value.orelse)
        return first if first == second else None
    if isinstance(value, cst.Tuple) or m.matches(value, STRIDES):
        return _length(function, value)  # type: ignore[arg-type]
    return None


def _is_target(function: cst.FunctionDef, name: cst.Name) -> bool:
    kinds: tuple[Any, ...] = (cst.AssignTarget, cst.AugAssign, cst.AnnAssign, cst.For, cst.CompFor, cst.NamedExpr, cst.Param)
    targets = [getattr(item, "target", None) or getattr(item, "name", None) for kind in kinds for item in find(function, kind)]
    return any(part is name for target in targets if target is not None for part in find(target, cst.Name))


def _strides(function: cst.FunctionDef, node: cst.BaseExpression) -> int | None:
    tensor = cst.ensure_type(cst.ensure_type(node, cst.Call).func, cst.Attribute).value
    return axes_of(function, tensor.value) if isinstance(tensor, cst.Name) else None


def axes_of(function: cst.FunctionDef, name: str) -> int | None:
    """How many axes a tensor has wherever a function names it, from `rows, columns = x.shape`; None where that is not told."""
    values = [value for value in assigned(function, name) if code(value).strip() != f"{name}.contiguous()"]
    parameters = [item.name.value for item in function.params.params]
    if len(values) + parameters.count(name) > 1:
        return None
    counts = set()
    for line in find(function, cst.Assign, m.Assign(targets=[m.AssignTarget(m.Tuple())])):
        if code(line.value).strip() in (f"{name}.shape", f"{name}.size()"):
            elements = cst.ensure_type(line.targets[0].target, cst.Tuple).elements
            counts.add(None if any(isinstance(item, cst.StarredElement) for item in elements) else len(elements))
    return counts.pop() if len(counts) == 1 else None


def parts_of(node: cst.BaseExpression, length: int) -> list[str]:
    """The parts of what is unpacked, in source form."""
    if isinstance(node, cst.Tuple):
        return [code(item.value) for item in node.elements]
    if isinstance(node, cst.IfExp):
        test = code(node.test)
        pairs = zip(parts_of(node.body, length), parts_of(node.orelse, length), strict=True)
        return [first if first == second else f"{first} if {test} else {second}" for first, second in pairs]
    if m.matches(node, STRIDES):
        tensor = code(cst.ensure_type(cst.ensure_type(node, cst.Call).func, cst.Attribute).value)
        return [f"{tensor}.stride({axis})" for axis in range(length)]
    return [f"{code(node)}[{index}]" for index in range(length)]


def keys_of(function: cst.FunctionDef, node: cst.BaseExpression) -> list[str]:
    """The keys of a dictionary that a function makes and nothing changes; none where that is not told."""
    values = assigned(function, node.value) if isinstance(node, cst.Name) else []
    if len(values) != 1:
        return []
    uses = find(function, cst.Name, m.Name(cst.ensure_type(node, cst.Name).value))
    unpacked = [item for item in find(function, cst.Arg, m.Arg(value=node)) if item.star == "**"]  # type: ignore[arg-type]
    if len(uses) != 1 + len(unpacked):
        return []
    table: Any = values[0]
    if m.matches(table, m.Call(func=m.Name("dict"))) and all(item.keyword is not None for item in table.args):
        return [item.keyword.value for item in table.args]
    keys = [getattr(item, "key", None) for item in table.elements] if isinstance(table, cst.Dict) else [None]
    plain = all(isinstance(key, cst.SimpleString) and str(key.evaluated_value).isidentifier() for key in keys)
    return [str(key.evaluated_value) for key in keys] if plain else []  # type: ignore[union-attr]
