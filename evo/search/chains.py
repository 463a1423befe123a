"""Chains: sequences of moves that helped together, by one name, so that the bandit knows them and a search can make them at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from evo.records import Request

LINK = "+"
"""Between the operators of a chain, in the order in which they are applied: ``defer_reductions+welford``."""

LONGEST = 3
"""Moves of a chain."""

OFFERED_AFTER = 2
"""Times that a sequence has to have helped before it is offered as one move: once may be noise."""

OFFERED = 6
"""Chains offered at a time, for a kind of kernel; the many others would take the single moves' turns."""


class Known(Protocol):
    """What a bandit knows of a chain: see `evo.search.bandit.Arm`."""

    won: float
    lost: float
    gains: int


def parts_of(name: str) -> tuple[str, ...]:
    """The operators behind a name: one, unless it is a chain's."""
    return tuple(name.split(LINK))


def sequence(first: Request, second: Request) -> str:
    """The name of what two requests did, of which the second changed what the first had made; empty where that can be no chain.

    A chain repeats moves of one parent that follow rules: what a model did once it will not do again.
    """
    if first.model or second.model or len(first.parents) != 1 or len(second.parents) != 1:
        return ""
    parts = (*parts_of(first.operator), *parts_of(second.operator))
    return LINK.join(parts) if len(parts) <= LONGEST else ""


def offered(arms: Mapping[str, Known], operators: Iterable[str]) -> list[str]:
    """The chains of some operators that helped often, by name.

    Args:
        arms: What is known, of chains and of single operators.
        operators: That a chain may consist of.
    """
    usable = set(operators)
    helped = [
        name for name, arm in arms.items() if LINK in name and arm.gains >= OFFERED_AFTER and usable.issuperset(parts_of(name))
    ]
    best = sorted(helped, key=lambda name: (-(1.0 + arms[name].won) / (2.0 + arms[name].won + arms[name].lost), name))
    return sorted(best[:OFFERED])
