"""Work that nobody does yet, oldest first; what is handed out costs no look at all that waits."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from evo.evaluation.base import Effort
from evo.records import Request
from evo.search.leases import LeaseBook
from evo.search.ledger import Ledger
from evo.search.state import TaskState


class Waiting:
    """Proposals that are not lent, and variants whose evaluation is not leased. Begins with what an earlier session left.

    Args:
        ledger: Says what is still wanted.
        book: Says what is out.
    """

    def __init__(self, ledger: Ledger, book: LeaseBook) -> None:
        self._ledger = ledger
        self._book = book
        states = ledger.states
        self.proposals = {number: request for state in states.values() for number, request in state.proposing.items()}
        self._evaluations = [(number, name) for name, state in states.items() for number in state.awaiting]
        heapq.heapify(self._evaluations)

    def matching(self, n: int, wanted: Callable[[Request], bool]) -> list[Request]:
        """Up to `n` proposals of a kind; they wait until they are deleted from `proposals`."""
        return sorted(filter(wanted, self.proposals.values()), key=lambda request: request.number)[:n]

    def back(self, number: int) -> None:
        """A proposal was lent and not made."""
        state = self._ledger.state_of(number)
        if state is not None and number in state.proposing:
            self.proposals[number] = state.proposing[number]

    def add(self, number: int, task: str) -> None:
        """A variant awaits its evaluation, for the first time or again."""
        heapq.heappush(self._evaluations, (number, task))

    def take(self, n: int, wanted: Callable[[TaskState], bool]) -> list[tuple[int, str]]:
        """Up to `n` variants to evaluate with their tasks, of wanted tasks; they do not wait any more."""
        taken: list[tuple[int, str]] = []
        others: list[tuple[int, str]] = []
        last = None
        while self._evaluations and len(taken) < n:
            number, task = item = heapq.heappop(self._evaluations)
            state = self._ledger.states[task]
            if item != last and number in state.awaiting and not self._book.is_leased(number, Effort.SEARCH):
                (taken if wanted(state) else others).append(item)
            last = item
        for item in others:
            self.add(*item)
        return taken
