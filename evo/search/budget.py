"""Counts what a run has used and says which limit is reached."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import ClassVar

from evo.records import Exchange, Spent
from evo.search.settings import Budget

_NEGLIGIBLE = 1e-9
"""Dollars; what sums of floats leave over."""


class Meter:
    """Adds up what is used, over all sessions of a run. Wall seconds of a session count from `begin`.

    Args:
        budget: The limits.
        clock: Monotonic seconds; only differences matter.

    Attributes:
        dearest_gpu_s: GPU seconds of the longest evaluation of the search so far, as which every one counts that is out; None before
            the first.
        committed_dollars, committed_tokens: What models have cost or may yet cost, by whoever reserves it; what recorded exchanges do
            not account for is held.
        refused: Why no money is left for a request, once that is known; empty before. A later session finds out anew.
    """

    KEPT: ClassVar = ("evaluations", "proposals", "gpu_s", "dearest_gpu_s", "dollars", "tokens")

    def __init__(self, budget: Budget, clock: Callable[[], float]) -> None:
        self.budget = budget
        self.evaluations = 0
        self.proposals = 0
        self.gpu_s = 0.0
        self.dearest_gpu_s: float | None = None
        self.dollars = 0.0
        self.tokens = 0
        self.committed_dollars = 0.0
        self.committed_tokens = 0
        self.refused = ""
        self._clock = clock
        self._begun: float | None = None
        self._earlier_wall_s = 0.0

    @property
    def begun(self) -> bool:
        """Whether wall seconds count already."""
        return self._begun is not None

    def begin(self) -> None:
        """An evaluator is ready: from the first one on, wall seconds count. Starting them, which is no search, would use up a short
        budget. Idempotent."""
        if self._begun is None:
            self._begun = self._clock()

    def resume(self, spent: Spent) -> None:
        """Goes on from what earlier sessions used, where the replayed records do not tell it themselves."""
        self._earlier_wall_s = spent.wall_s
        self.gpu_s = max(self.gpu_s, spent.gpu_s)
        self.dollars = max(self.dollars, spent.dollars)
        # What was in flight when an earlier session ended may have been billed, so it counts as spent.
        self.committed_dollars = self.dollars + spent.held_dollars
        self.committed_tokens = self.tokens + spent.held_tokens

    def evaluated(self, gpu_s: float, *, searched: bool) -> None:
        """Adds the GPU seconds of an evaluation, of the search or of a verification."""
        self.gpu_s += gpu_s
        if searched:
            self.dearest_gpu_s = max(gpu_s, self.dearest_gpu_s or 0.0)

    def room(self, out: int) -> int:
        """How many evaluations of the search may begin beside those that are out, so that together they stay within the GPU seconds.

        Each counts as the longest so far; the first one, of which nothing is known, is waited for.
        """
        if self.budget.gpu_s is None or self.dearest_gpu_s == 0.0:
            return sys.maxsize
        together = 1 if self.dearest_gpu_s is None else int((self.budget.gpu_s - self.gpu_s) / self.dearest_gpu_s)
        return max(0, together - out)

    def pay(self, exchanges: tuple[Exchange, ...]) -> None:
        """Adds the price of exchanges with a language model."""
        self.dollars += sum(exchange.usage.dollars for exchange in exchanges)
        self.tokens += sum(exchange.usage.tokens for exchange in exchanges)

    @property
    def spent(self) -> Spent:
        """What has been used by now."""
        wall_s = self._earlier_wall_s + (0.0 if self._begun is None else self._clock() - self._begun)
        held = self.committed_dollars - self.dollars, max(0, self.committed_tokens - self.tokens)
        held = (held[0] if held[0] > _NEGLIGIBLE else 0.0, held[1])
        return Spent(self.evaluations, self.proposals, wall_s, self.gpu_s, self.dollars, self.tokens, *held)

    @property
    def exhausted(self) -> str | None:
        """Which limit is reached, in words for a person, or None."""
        spent, budget = self.spent, self.budget
        if budget.evaluations is not None and spent.evaluations >= budget.evaluations:
            return f"the budget of {budget.evaluations} evaluations is used"
        if budget.dollars is not None and spent.dollars >= budget.dollars:
            return f"the budget of {budget.dollars:g} dollars is used"
        if budget.tokens is not None and spent.tokens >= budget.tokens:
            return f"the budget of {budget.tokens} tokens is used"
        return self.refused or self.time_is_up

    @property
    def time_is_up(self) -> str | None:
        """Like `exhausted`, for those limits after which not even work at hand is begun: wall and GPU seconds."""
        spent, budget = self.spent, self.budget
        if budget.wall_s is not None and spent.wall_s >= budget.wall_s:
            return f"the budget of {budget.wall_s:g} wall seconds is used"
        if budget.gpu_s is not None and spent.gpu_s >= budget.gpu_s:
            return f"the budget of {budget.gpu_s:g} GPU seconds is used"
        if self.room(0) < 1:
            left = f"{spent.gpu_s:.1f} are used, and an evaluation takes up to {self.dearest_gpu_s:.1f}"
            return f"the budget of {budget.gpu_s:g} GPU seconds has no room for another evaluation: {left}"
        return None
