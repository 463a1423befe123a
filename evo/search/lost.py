"""Work that was handed out and not done: others get it, or it is recorded as failed once it has cost too many of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from evo.evaluation.base import Effort
from evo.records import Evaluation, Event, EventKind, NoProposal, Stage, Status
from evo.search.leases import Lease, LeaseBook
from evo.search.ledger import Ledger
from evo.search.waiting import Waiting
from population_store.base import Entry, EvaluationEntry, Purpose

LATE_S = 120.0
"""How long proposals are waited for that are out when the time of a run is up: replies of a batch, or of a person, may take a day."""


class LostWork:
    """See the module's docstring; `Engine` says what its methods promise.

    Args:
        ledger: Of the run.
        book: Says what is out.
        waiting: Takes what is not done.
        max_attempts: After the loss of so many holders, the work itself has failed.
        clock: Monotonic seconds.
        tell: Records what came of a proposal.
    """

    def __init__(
        self,
        ledger: Ledger,
        book: LeaseBook,
        waiting: Waiting,
        max_attempts: int,
        clock: Callable[[], float],
        tell: Callable[[int, NoProposal], object],
    ) -> None:
        self._ledger = ledger
        self._book = book
        self._waiting = waiting
        self._max_attempts = max_attempts
        self._clock = clock
        self._tell = tell
        self._lost_proposals: Counter[int] = Counter()
        self._late_from: float | None = None

    def expire(self) -> None:
        """See `Engine.expire`."""
        for work in self._book.overdue():
            self.give_back(work, "its holder fell silent")
        if self._book.loans and self._ledger.meter.time_is_up is not None:
            self._late_from = self._late_from if self._late_from is not None else self._clock() + LATE_S
            for number in tuple(self._book.loans) if self._clock() >= self._late_from else ():
                self.leave(number)

    def give_back(self, work: int | str, reason: str) -> bool:
        """See `Engine.give_back`."""
        if isinstance(work, int):
            return self._proposal(work, reason)
        return work in self._book.leases and self._evaluation(work, reason)

    def leave(self, number: int) -> None:
        """A proposal is not out any more; told after all, it counts."""
        self._book.close(number)
        self._waiting.back(number)

    def _proposal(self, number: int, reason: str) -> bool:
        if number not in self._book.loans:
            return False
        self.leave(number)
        self._lost_proposals[number] += 1
        if self._lost_proposals[number] >= self._max_attempts:
            times = self._lost_proposals.pop(number)
            self._tell(number, NoProposal(f"killed its proposer {times} times; the last time: {reason}", failed=True))
        return True

    def _evaluation(self, token: str, reason: str) -> bool:
        device, rivals, lease = self._book.device_of(token), self._book.others(token), self._book.leases[token]
        self._book.close(token)
        variant_id, state = lease.item.variant.variant_id, self._ledger.states[lease.task]
        if lease.item.effort is Effort.SEARCH:
            self._waiting.add(lease.item.number, lease.task)
        note = state.archive.get(variant_id)  # gone where an elite under verification has left the front
        island, lineage = (0, "") if note is None else (note.request.island, note.request.lineage)
        entries: list[Entry] = [Event(EventKind.WORKER_LOST, lease.task, island, lineage, variant_id, f"evaluator: {reason}")]
        if state.attempts[variant_id] + 1 >= self._max_attempts:
            entries.append(self._failed(lease, device, reason))
            for rival in rivals:
                self._book.close(rival)
        self._ledger.commit(entries)
        return True

    def _failed(self, lease: Lease, device: str, reason: str) -> EvaluationEntry:
        verify = lease.item.effort is Effort.VERIFY
        verdict = Evaluation(
            lease.item.variant.variant_id,
            Status.RUNTIME_ERROR,
            Stage.VERIFY if verify else Stage.TRACE,
            device,
            message=f"killed its evaluator {self._max_attempts} times; the last time: {reason}",
            signature="evaluator killed",
        )
        return EvaluationEntry(lease.item.number, Purpose.VERIFY if verify else Purpose.SEARCH, verdict)
