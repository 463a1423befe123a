"""Writes plain values as Python literals that a person can read: one line where it fits, else one entry a line."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

WIDTH = 120
_INDENT = 4


def literal(value: Any, *, column: int = 0, indent: int = 0) -> str:
    """Source text of nested dicts, lists, tuples and plain values.

    Args:
        value: What to write.
        column: Characters before it on its line.
        indent: Of the line it begins on.
    """
    flat = _flat(value)
    if column + len(flat) <= WIDTH or not isinstance(value, Mapping | list | tuple) or not value:
        return flat
    inner = indent + _INDENT
    opening, closing = ("{", "}") if isinstance(value, Mapping) else ("[", "]") if isinstance(value, list) else ("(", ")")
    heads = [f"{_flat(key)}: " for key in value] if isinstance(value, Mapping) else [""] * len(value)
    items = value.values() if isinstance(value, Mapping) else value
    lines = [
        f"{' ' * inner}{head}{literal(item, column=inner + len(head) + 1, indent=inner)},\n"
        for head, item in zip(heads, items, strict=True)
    ]
    return f"{opening}\n{''.join(lines)}{' ' * indent}{closing}"


def _flat(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flat(key)}: {_flat(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flat, value)) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_flat, value)) + ("," if len(value) == 1 else "") + ")"
    return repr(value)
