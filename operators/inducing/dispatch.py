"""Tells the forms of a seed apart by their arguments, and nests what a form returns as the reference does."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from evo.syntax import expression_tree


def conditions(form: Mapping[str, Any], arguments: Sequence[str]) -> str:
    """When a form applies: dtypes, dimensions, sizes that are constants or equal, plain values, and what the compiler assumed."""
    sizes = {name: f"{arguments[place]}.shape[{dim}]" for name, (place, dim) in form["symbols"].items()}
    left: list[str] = []
    right: list[str] = []
    for position, item in enumerate(form["arguments"]):
        name = arguments[position]
        if "value" in item:
            left.append(name)
            right.append(repr(item["value"]))
            continue
        left.append(f"{name}.dtype")
        right.append(f"torch.{item['dtype']}")
        if not item["shape"]:
            left.append(f"{name}.dim()")
            right.append("0")
            continue
        left.append(f"{name}.shape")
        wanted = [sizes.get(str(size), str(size)) for size in item["shape"]]
        right.append(f"({wanted[0]},)" if len(wanted) == 1 else f"({', '.join(wanted)})")
    parts = [f"({', '.join(left)}) == ({', '.join(right)})"] if len(left) > 1 else [f"{left[0]} == {right[0]}"] if left else []
    for item in form["layouts"]:
        parts.append(re.sub(r"\bx\b", arguments[item["position"]], item["test"]))
    for guard in form["guards"]:
        parts.append(re.sub(r"\bn\d+\b", lambda found: sizes.get(found[0], found[0]), guard))
    return " and ".join(parts)


def nested(structure: object, results: Sequence[str]) -> str:
    """The outputs as an expression: a result twice is returned twice, in separate memory."""
    return ast.unparse(expression_tree(_nested(structure, _separate(results))))


def _separate(results: Sequence[str]) -> list[str]:
    found: list[str] = []
    for item in results:
        found.append(f"{item}.clone()" if item in found else item)
    return found


def _nested(structure: object, results: Sequence[str]) -> str:
    if structure is None:
        return "None"
    if isinstance(structure, int):
        return results[structure]
    assert isinstance(structure, dict)
    ((kind, items),) = structure.items()
    if kind == "dict":
        return "{" + ", ".join(f"{key!r}: {_nested(item, results)}" for key, item in items.items()) + "}"
    parts = [_nested(item, results) for item in items]
    if kind == "list":
        return f"[{', '.join(parts)}]"
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
