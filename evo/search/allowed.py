"""What a run may use: as it began, or as the newest session wrote down that was given another budget."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from evo.records import Event, EventKind
from evo.search.settings import Budget
from population_store.base import RunHeader

Limits = Mapping[str, float]
"""By names of the budget; those without a limit left out."""


def began_with(header: RunHeader) -> Limits | None:
    """The limits that a run began with; None where its configuration is not in its store."""
    found: Any = json.loads(header.config).get("budget")
    return None if found is None else _limits(found)


def budget_event(budget: Budget) -> Event:
    """What is recorded of a session's budget."""
    return Event(EventKind.BUDGET, "", 0, "", "", json.dumps(limits_of(budget)))


def limits_of(budget: Budget) -> Limits:
    """The limits of a budget."""
    return _limits(dataclasses.asdict(budget))


def recorded(event: Event) -> Limits:
    """The limits that an event tells; none where it is no record of ours, but of a bundle that somebody else wrote."""
    try:
        return _limits(json.loads(event.reason))
    except (ValueError, RecursionError):
        return {}


def _limits(found: Any) -> Limits:
    values = found if isinstance(found, dict) else {}
    names = [field.name for field in dataclasses.fields(Budget)]
    return {name: values[name] for name in names if type(values.get(name)) in (int, float)}
