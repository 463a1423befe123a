"""Work handed out for a limited time: leases of evaluations with fencing tokens, loans of proposals, and plan reservations.

Nothing here is stored: after a restart all of it is void, and work that was not recorded is handed out again.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from evo.evaluation.base import Effort, WorkItem

NOTICED_S = 1.0
"""Shorter pauses than this are within everybody's patience."""


@dataclass(frozen=True)
class Lease:
    """One evaluation handed out.

    Attributes:
        token: To renew the lease and to report the result with; a stale one is refused.
        item: What to evaluate.
        task: Its task.
    """

    token: str
    item: WorkItem
    task: str


class LeaseBook:
    """All work that is out.

    Args:
        epoch: Differs between the sessions of a run, so that tokens of an earlier one are stale.
        lease_s: Seconds without renewal after which work is taken back.
        clock: Monotonic seconds.
    """

    def __init__(self, epoch: int, lease_s: float, clock: Callable[[], float]) -> None:
        self.leases: dict[str, Lease] = {}
        self._work: dict[tuple[int, Effort], list[str]] = {}
        self.loans: set[int] = set()
        self._devices: dict[str, str] = {}
        self._variants: dict[str, str] = {}
        self._tokens: dict[str, str] = {}
        self._deadlines: dict[str | int, float] = {}
        self._reserved: dict[tuple[str, str, str], str] = {}
        self._plans: dict[str, list[tuple[str, str, str]]] = {}
        self._next_deadline = math.inf
        self._epoch = epoch
        self._issued = 0
        self._searches = 0
        self._lease_s = lease_s
        self._clock = clock

    def lease(self, item: WorkItem, task: str, device: str) -> Lease:
        """Hands out an evaluation; again where a holder is slow, and then the first verdict counts."""
        self._issued += 1
        lease = Lease(f"{self._epoch}.{self._issued}", item, task)
        self.leases[lease.token] = lease
        self._searches += item.effort is Effort.SEARCH
        self._work.setdefault((item.number, item.effort), []).append(lease.token)
        self._devices[lease.token] = device
        self._variants[lease.token] = variant_id = item.variant.variant_id
        self._tokens[variant_id] = lease.token
        self._due(lease.token)
        return lease

    def lend(self, number: int) -> None:
        """Hands out a proposal."""
        self.loans.add(number)
        self._due(number)

    def renew(self, work: str | int) -> bool:
        """Extends a lease (by token) or a loan (by number); False if it is not out any more."""
        if work not in self._deadlines:
            return False
        self._deadlines[work] = self._clock() + self._lease_s
        return True

    def close(self, work: str | int) -> Lease | None:
        """Takes work back, with what it had reserved; the lease if it was one."""
        self._deadlines.pop(work, None)
        if isinstance(work, int):
            self.loans.discard(work)
            return None
        self._devices.pop(work, None)
        lease = self.leases.pop(work, None)
        heirs: list[str] = []
        if lease is not None:
            self._searches -= lease.item.effort is Effort.SEARCH
            key = (lease.item.number, lease.item.effort)
            heirs = self._work[key]
            heirs.remove(work)
            if not heirs:
                del self._work[key]
            if self._tokens.get(variant_id := self._variants.pop(lease.token)) == lease.token:
                del self._tokens[variant_id]
                if heirs:
                    self._tokens[variant_id] = heirs[-1]
        for plan in self._plans.pop(work, ()):
            del self._reserved[plan]
            if heirs:  # somebody else measures this plan for the same variant
                self._reserve(plan, heirs[-1])
        return lease

    def others(self, token: str) -> tuple[str, ...]:
        """Further live leases of the same evaluation."""
        lease = self.leases[token]
        return tuple(other for other in self._work[lease.item.number, lease.item.effort] if other != token)

    def overdue(self) -> tuple[str | int, ...]:
        """Work that was not renewed in time."""
        now = self._clock()
        if now < self._next_deadline:  # renewals only put it off, so no look at each is needed before
            return ()
        found = tuple(work for work, deadline in self._deadlines.items() if deadline <= now)
        self._next_deadline = min(self._deadlines.values(), default=math.inf)
        return found

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """The seconds that a long block takes count against no holder: signs of life that come meanwhile are read after it only."""
        began = self._clock()
        try:
            yield
        finally:
            took = self._clock() - began
            if took > NOTICED_S:
                self._deadlines = {work: deadline + took for work, deadline in self._deadlines.items()}
                self._next_deadline += took

    def reserve(self, plan_hash: str, variant_id: str) -> str | None:
        """Reserves a plan for a leased variant; the variant id of another live lease on the same task and device that has it."""
        token = self.token_of(variant_id)
        if token is None:
            return None
        key = (self.leases[token].task, self._devices[token], plan_hash)
        if key not in self._reserved:
            self._reserve(key, token)
        holder = self._variants[self._reserved[key]]
        return None if holder == variant_id else holder

    def is_leased(self, number: int, effort: Effort) -> bool:
        """Somebody is doing this evaluation."""
        return (number, effort) in self._work

    def token_of(self, variant_id: str) -> str | None:
        """The newest live lease of a variant."""
        return self._tokens.get(variant_id)

    def device_of(self, token: str) -> str:
        """The device a lease was handed out for."""
        return self._devices[token]

    @property
    def searches_out(self) -> int:
        """Evaluations of the search that are out."""
        return self._searches

    @property
    def searching(self) -> bool:
        """A proposal, or an evaluation of the search, is out."""
        return bool(self.loans) or self._searches > 0

    @property
    def idle(self) -> bool:
        """Nothing is out."""
        return not self._deadlines

    def _due(self, work: str | int) -> None:
        deadline = self._deadlines[work] = self._clock() + self._lease_s
        self._next_deadline = min(self._next_deadline, deadline)

    def _reserve(self, plan: tuple[str, str, str], token: str) -> None:
        self._reserved[plan] = token
        self._plans.setdefault(token, []).append(plan)
