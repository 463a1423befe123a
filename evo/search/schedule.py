"""What a run does next as a whole: which task proposes, whether the search is over, whether it is time to verify."""

from __future__ import annotations

from collections.abc import Iterator

from evo.evaluation.base import Effort
from evo.records import Request
from evo.search.choice import choose
from evo.search.leases import LeaseBook
from evo.search.ledger import Ledger
from evo.search.randomness import Draw, stream
from evo.search.settings import SearchSettings
from evo.search.state import TaskState


class Schedule:
    """Reads state and leases; changes neither.

    Args:
        ledger: State and limits.
        book: What is out.
        settings: See `SearchSettings`.
    """

    def __init__(self, ledger: Ledger, book: LeaseBook, settings: SearchSettings) -> None:
        self._ledger = ledger
        self._book = book
        self._settings = settings

    def decide(self) -> Request | None:
        """The next request: of the task that had the fewest; None where limits or ideas are used up."""
        ledger, pending = self._ledger, self._ledger.pending
        allowed = ledger.meter.budget.evaluations
        if pending >= self._settings.pending_limit or (allowed is not None and ledger.meter.evaluations + pending >= allowed):
            return None
        for state in sorted(ledger.states.values(), key=lambda state: state.requests):
            request = self._next(state)
            if request is not None:
                return request
        return None

    def _next(self, state: TaskState) -> Request | None:
        """The next request of a task, with its model where its operator asks one."""
        ledger = self._ledger
        number = ledger.next_number
        open_to_models = state.mix.is_open
        operators = [operator for operator in ledger.operators if open_to_models or not operator.needs_model]
        request = (state.redirected(number) if open_to_models else None) or choose(state, number, ledger.seed, operators)
        if request is None or not any(item.name == request.operator and item.needs_model for item in operators):
            return request
        return state.mix.with_model(request, stream(ledger.seed, Draw.MODEL, state.name, number))

    def awaiting(self) -> Iterator[tuple[int, str]]:
        """Number and task of variants that await an evaluation nobody is doing."""
        for name, state in self._ledger.states.items():
            for number in state.awaiting:
                if not self._book.is_leased(number, Effort.SEARCH):
                    yield number, name

    @property
    def search_over(self) -> str | None:
        """Why no more is searched, or None. Work at hand is finished first, unless the time for it is up."""
        meter = self._ledger.meter
        if meter.time_is_up is not None:
            return meter.time_is_up
        if meter.exhausted is not None:
            return meter.exhausted if next(self.awaiting(), None) is None else None
        if self._ledger.pending == 0 and self.decide() is None:
            if not self._ledger.operators:
                return "the starting kernels are tuned, and the run has no operators"
            silent = [state.mix.failing for state in self._ledger.states.values() if not state.mix.is_open]
            told = "; ".join(f"{model}: {reason}" for failing in silent[:1] for model, (_, reason) in failing.items())
            return f"no model answers any more ({told})" if told else "search space exhausted"
        return None

    @property
    def verifying(self) -> bool:
        """The search is over and none of its work is out."""
        return not self._book.searching and self.search_over is not None
