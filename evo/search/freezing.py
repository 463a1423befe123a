"""Objects of a search's state as JSON text and back: only named attributes of named classes, nothing that could be run."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from numbers import Integral, Real
from typing import Any

from evo.records import Configuration

KEPT = "KEPT"
"""Class attribute of what lives as long as its owner: names of the attributes that hold its state."""


def freeze(owner: Any) -> str:
    """The state of an object as text: its attributes named by ``KEPT``, and so on below them."""
    return json.dumps(_state(owner), separators=(",", ":"))


def thaw(owner: Any, text: str, classes: Iterable[type]) -> None:
    """Gives an object, made like the one that was frozen, its state.

    Args:
        owner: Changed in place, or not at all.
        text: What `freeze` gave.
        classes: Dataclasses and enumerations that may occur.

    Raises:
        ValueError: The text is not of such an object.
    """
    try:
        found = list(_restored(owner, json.loads(text), {cls.__name__: cls for cls in classes}))
    except (TypeError, KeyError, IndexError, AttributeError) as error:
        raise ValueError(f"not the state of a {type(owner).__name__}: {type(error).__name__}: {error}") from error
    for changed, name, value in found:
        setattr(changed, name, value)


def layout(owner: Any, classes: Iterable[type]) -> str:
    """What a frozen text of such an object depends on: names of attributes and fields."""
    fields = {cls.__name__: [field.name for field in dataclasses.fields(cls)] for cls in classes if dataclasses.is_dataclass(cls)}
    return json.dumps([_names(owner), fields], sort_keys=True)


def _names(value: Any) -> Any:
    if hasattr(value, KEPT):
        return {name: _names(getattr(value, name)) for name in value.KEPT}
    if isinstance(value, tuple | list):
        return [_names(item) for item in value if hasattr(item, KEPT)][:1]
    return None


def _state(owner: Any) -> dict[str, Any]:
    return {name: _frozen(getattr(owner, name)) for name in owner.KEPT}


def _frozen(value: Any) -> Any:
    """Plain JSON values as they are, anything else as a list that begins with its kind."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if hasattr(value, KEPT):
        return ["owner", _state(value)]
    if isinstance(value, Enum):
        return ["enum", type(value).__name__, value.value]
    if isinstance(value, Integral):  # an evaluator may give numbers of numpy, and a long run must not end for that
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Configuration):
        return ["configuration", dict(value)]
    if dataclasses.is_dataclass(value):
        return ["record", type(value).__name__, [_frozen(getattr(value, field.name)) for field in dataclasses.fields(value)]]
    if isinstance(value, Mapping):
        kind = "counter" if isinstance(value, Counter) else "dict"
        return [kind, [[_frozen(key), _frozen(item)] for key, item in value.items()]]
    if isinstance(value, deque):
        return ["deque", value.maxlen, [_frozen(item) for item in value]]
    if isinstance(value, set | frozenset):
        return [type(value).__name__, sorted(value)]
    if isinstance(value, tuple | list):
        return [type(value).__name__, [_frozen(item) for item in value]]
    raise TypeError(f"{type(value).__name__} cannot be part of a search's state")


def _restored(owner: Any, state: Mapping[str, Any], classes: Mapping[str, type]) -> Iterator[tuple[Any, str, Any]]:
    """Objects, names of their attributes, and the values to give those."""
    for name in owner.KEPT:
        frozen, current = state[name], getattr(owner, name)
        owned = isinstance(current, tuple | list) and bool(current) and hasattr(current[0], KEPT)
        if owned:
            for item, (_, inner) in zip(current, frozen[1], strict=True):
                yield from _restored(item, inner, classes)
        elif hasattr(current, KEPT):
            yield from _restored(current, frozen[1], classes)
        else:
            yield owner, name, _thawed(frozen, classes)


def _thawed(frozen: Any, classes: Mapping[str, type]) -> Any:
    if not isinstance(frozen, list):
        return frozen
    kind, *rest = frozen
    if kind == "enum":
        return classes[rest[0]](rest[1])
    if kind == "configuration":
        return Configuration(rest[0])
    if kind == "record":
        return classes[rest[0]](*(_thawed(item, classes) for item in rest[1]))
    if kind in ("dict", "counter"):
        found = {_thawed(key, classes): _thawed(item, classes) for key, item in rest[0]}
        return Counter(found) if kind == "counter" else found
    if kind == "deque":
        return deque((_thawed(item, classes) for item in rest[1]), rest[0])
    builders = {"set": set, "frozenset": frozenset, "tuple": tuple, "list": list}
    return builders[kind](_thawed(item, classes) for item in rest[0])
