"""Which operators have nothing more to give for which parents, so that a search never asks in circles."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from evo.search.settings import SearchSettings


class OperatorLike(Protocol):
    """The part of an operator's description that is needed here."""

    @property
    def name(self) -> str:
        """Registered name."""


@dataclass(frozen=True)
class Attempted:
    """An operator and the parents that it was asked for."""

    operator: str
    parents: tuple[str, ...]


class Exhaustion:
    """Counts, per operator and parents, outcomes that led to no new variant."""

    KEPT: ClassVar = ("_fruitless", "_failures")

    def __init__(self, settings: SearchSettings) -> None:
        self._settings = settings
        self._fruitless: dict[Attempted, int] = {}
        self._failures: dict[str, int] = {}

    def fruitful(self, operator: str, parents: tuple[str, ...]) -> None:
        """A new variant came of it."""
        self._fruitless.pop(Attempted(operator, parents), None)
        self._failures[operator] = 0

    def fruitless(self, operator: str, parents: tuple[str, ...], *, applies: bool = True, failed: bool = False) -> None:
        """Nothing new came of it: it does not apply (then it is never asked again), it failed, or it repeated a known variant."""
        key = Attempted(operator, parents)
        limit = self._limit(parents)
        self._fruitless[key] = min(limit, self._fruitless.get(key, 0) + 1) if applies else limit
        self._failures[operator] = self._failures.get(operator, 0) + 1 if failed else 0

    def new_session(self) -> None:
        """Operators that were given up for failing everywhere (an endpoint that was down) get another chance."""
        limit = self._settings.operator_failure_limit
        self._failures = {name: count for name, count in self._failures.items() if count < limit}

    def forget(self, gone: Callable[[str], bool]) -> None:
        """Drops what was counted of parents that are gone: nothing is asked of those again."""
        self._fruitless = {key: count for key, count in self._fruitless.items() if not any(map(gone, key.parents))}

    def is_open(self, operator: str, parents: tuple[str, ...]) -> bool:
        """Whether asking may still lead to something new."""
        return self._failures.get(operator, 0) < self._settings.operator_failure_limit and self._fruitless.get(
            Attempted(operator, parents), 0
        ) < self._limit(parents)

    def _limit(self, parents: tuple[str, ...]) -> int:
        """What is made of no parent is not used up by a few failures, as all of it has the same ones."""
        return self._settings.fruitless_limit if parents else self._settings.operator_failure_limit

    def any_open(self, operators: Iterable[OperatorLike], variant_id: str) -> bool:
        """Whether one of some single-parent operators may still make something of a variant."""
        return any(self.is_open(operator.name, (variant_id,)) for operator in operators)
