"""Cases as plain JSON values, as task files of suites hold them."""

from __future__ import annotations

import dataclasses
import json
import pprint
from collections.abc import Mapping, Sequence
from typing import Any

from evo.tasks.base import Argument, Case, TensorSpec

_DEFAULTS = {field.name: field.default for field in dataclasses.fields(TensorSpec) if field.default is not dataclasses.MISSING}


def spec_to_json(item: Argument) -> Any:
    """A specification without what is as usual; plain values as they are."""
    if not isinstance(item, TensorSpec):
        return item
    return {key: value for key, value in vars(item).items() if key not in _DEFAULTS or value != _DEFAULTS[key]}


def spec_from_json(data: Any) -> Argument:
    """Inverse of `spec_to_json`.

    Raises:
        ValueError: No such tensor can be made.
    """
    if not isinstance(data, dict):
        return data  # type: ignore[no-any-return]
    known: dict[str, Any] = {**data, "shape": tuple(data["shape"])}
    if known.get("strides") is not None:
        known["strides"] = tuple(known["strides"])
    return TensorSpec(**known)


def case_to_json(case: Case) -> dict[str, Any]:
    """A case in JSON form."""
    return {**vars(case), "arguments": [spec_to_json(item) for item in case.arguments]}


def case_from_json(data: Mapping[str, Any]) -> Case:
    """Inverse of `case_to_json`."""
    return Case(data["name"], tuple(map(spec_from_json, data["arguments"])), data["bytes"], data["flops"])


def cases_from_json(data: Sequence[Mapping[str, Any]]) -> tuple[Case, ...]:
    """Several."""
    return tuple(map(case_from_json, data))


def literal(value: Any) -> str:
    """JSON values as Python source."""
    return pprint.pformat(json.loads(json.dumps(value)), width=120, compact=True, sort_dicts=False)
