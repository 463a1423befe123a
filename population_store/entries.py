"""Journal entries as plain JSON and back, checked for what they claim to be, since they may come from another machine."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from evo.plain import Record
from evo.records import Configuration, Evaluation, Event, NoProposal, Proposal, Request, Trial, Variant
from population_store.base import Entry, EvaluationEntry, OutcomeEntry, Purpose, TrialEntry

R = TypeVar("R", bound=Record)

_WHOLE_LIMIT = 2**63
"""Databases have no larger numbers for what is counted."""


def entry_to_json(entry: Entry) -> dict[str, Any]:
    """Plain JSON values only; ``kind`` says which entry it is."""
    if isinstance(entry, Request):
        return {"kind": "request", "request": entry.to_json()}
    if isinstance(entry, Event):
        return {"kind": "event", "event": entry.to_json()}
    if isinstance(entry, EvaluationEntry):
        purpose = entry.purpose.value
        return {"kind": "evaluation", "number": entry.number, "purpose": purpose, "evaluation": entry.evaluation.to_json()}
    if isinstance(entry, TrialEntry):
        trials = [trial.to_json() for trial in entry.trials]
        return {"kind": "trials", "number": entry.number, "position": entry.position, "device": entry.device, "trials": trials}
    if entry.variant is None:
        return {"kind": "no proposal", "number": entry.number, "outcome": entry.outcome.to_json()}
    variant = entry.variant.to_json()
    return {"kind": "proposal", "number": entry.number, "outcome": entry.outcome.to_json(), "variant": variant}


def entry_from_json(data: object) -> Entry:
    """Inverse of `entry_to_json`.

    Raises:
        ValueError: It is no entry; the text says what is wrong with it.
    """
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str) or data["kind"] not in _READERS:
        raise ValueError(f"no entry of a journal: its kind must be one of {', '.join(_READERS)}")
    reader, keys = _READERS[data["kind"]]
    if set(data) != {"kind", *keys}:
        raise ValueError(f"an entry of kind {data['kind']} has {', '.join(keys)}")
    return reader(data)


def canonical(value: object) -> str:
    """JSON text that equal values have in common, wherever they were stored: without regard to the order of keys, nor to whether a
    whole number is kept as a float."""
    return json.dumps(_normal(value), sort_keys=True, separators=(",", ":"))


def record_from_json(cls: type[R], data: object) -> R:
    """A record of a class out of JSON values that anybody may have written.

    Raises:
        ValueError: A key is missing or unknown, a value is of another type, or the record contradicts itself.
    """
    _check(data, cls, cls.__name__)
    assert isinstance(data, dict)
    try:
        return cls.from_json(data)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{cls.__name__}: {type(error).__name__}: {error}") from None


def whole(data: Mapping[str, object], key: str) -> int:
    """A count or position.

    Raises:
        ValueError: It is none.
    """
    value = data.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _WHOLE_LIMIT:
        raise ValueError(f"{key} must be a whole number from 0")
    return value


def _evaluation(data: Mapping[str, Any]) -> Entry:
    return EvaluationEntry(whole(data, "number"), Purpose(data["purpose"]), record_from_json(Evaluation, data["evaluation"]))


def _trials(data: Mapping[str, Any]) -> Entry:
    _check(data["device"], str, "device")
    if not isinstance(data["trials"], list):
        raise ValueError("trials must be a list")
    trials = tuple(record_from_json(Trial, item) for item in data["trials"])
    return TrialEntry(whole(data, "number"), whole(data, "position"), data["device"], trials)


def _proposal(data: Mapping[str, Any]) -> Entry:
    outcome, variant = record_from_json(Proposal, data["outcome"]), record_from_json(Variant, data["variant"])
    return OutcomeEntry(whole(data, "number"), outcome, variant)


_READERS: Mapping[str, tuple[Callable[[Mapping[str, Any]], Entry], tuple[str, ...]]] = {
    "request": (lambda data: record_from_json(Request, data["request"]), ("request",)),
    "event": (lambda data: record_from_json(Event, data["event"]), ("event",)),
    "proposal": (_proposal, ("number", "outcome", "variant")),
    "no proposal": (
        lambda data: OutcomeEntry(whole(data, "number"), record_from_json(NoProposal, data["outcome"]), None),
        ("number", "outcome"),
    ),
    "evaluation": (_evaluation, ("number", "purpose", "evaluation")),
    "trials": (_trials, ("number", "position", "device", "trials")),
}


def _check(value: object, hint: Any, where: str) -> None:
    """Whether a JSON value may become a field of this type."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        _check_record(value, hint, where)
    elif hint is Configuration:
        if not isinstance(value, dict):
            raise ValueError(f"{where} must be an object")
        for key, knob in value.items():
            _check(key, str, where)
            _check(knob, int | float | bool | str, f"{where}.{key}")
    elif typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{where} must be a list")
        for item in value:
            _check(item, typing.get_args(hint)[0], where)
    elif typing.get_origin(hint) in (typing.Union, types.UnionType):
        _check_union(value, typing.get_args(hint), where)
    else:
        _check_plain(value, hint, where)


def _check_record(value: object, hint: type, where: str) -> None:
    fields, required = _fields(hint)
    if not isinstance(value, dict) or not required <= set(value) <= set(fields):
        raise ValueError(f"{where} must be an object with {', '.join(fields)}")
    for key, item in value.items():
        _check(item, fields[key], f"{where}.{key}")


def _check_union(value: object, hints: tuple[Any, ...], where: str) -> None:
    for hint in hints:
        try:
            return _check(value, hint, where)
        except ValueError:
            continue
    raise ValueError(f"{where} is of another type")


def _check_plain(value: object, hint: Any, where: str) -> None:
    """Texts may hold anything, since models write them; figures may be infinite."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if hint is float:
        fits = is_number
    elif hint is int:
        fits = is_number and isinstance(value, int)
    elif issubclass(hint, StrEnum):
        fits = isinstance(value, str) and value in {item.value for item in hint}
    else:
        fits = isinstance(value, hint)
    if not fits:
        raise ValueError(f"{where} must be {'nothing' if hint is type(None) else hint.__name__}")


@functools.cache
def _fields(cls: type) -> tuple[dict[str, Any], frozenset[str]]:
    """Fields of a record with their types, and those without a default."""
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)
    required = frozenset(field.name for field in fields if field.default is dataclasses.MISSING)
    return {field.name: hints[field.name] for field in fields}, required


def _normal(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _normal(item) for key, item in value.items()}
    return [_normal(item) for item in value] if isinstance(value, list | tuple) else value
