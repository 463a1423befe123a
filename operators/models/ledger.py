"""The dollar budget of a process's requests: reserved before a request is sent, settled when its bill is known.

A reservation is the most that the request can cost, so that requests in flight together can never spend more than the cap. One
ledger serves all models of one process; the engine adds up processes from the exchanges it records.
"""

from __future__ import annotations

import asyncio
import math
import threading

from evo.errors import SpendLimitError


class Reservation:
    """Money held for one request. Settle it exactly once; settling again changes nothing.

    Attributes:
        dollars: The amount held.
    """

    def __init__(self, ledger: Ledger, dollars: float) -> None:
        self._ledger = ledger
        self.dollars = dollars

    def settle(self, dollars: float) -> None:
        """Books the real bill and gives the rest back.

        Args:
            dollars: 0 where the endpoint billed nothing; the reserved amount where the bill is unknown.
        """
        self._ledger._settle(self, dollars)


class Ledger:
    """Thread-safe, and usable from several event loops at once.

    Args:
        cap_dollars: What may be spent in all; None for no limit.
        spent_dollars: What was spent before, by an earlier part of the same run.
    """

    def __init__(self, cap_dollars: float | None = None, *, spent_dollars: float = 0.0) -> None:
        if cap_dollars is not None and not cap_dollars >= 0:
            raise ValueError(f"the cap must be 0 or more dollars, given {cap_dollars}")
        self._cap = cap_dollars
        self._spent = spent_dollars
        self._held: set[Reservation] = set()
        self._waiting: list[asyncio.Future[None]] = []
        self._lock = threading.Lock()

    @property
    def cap(self) -> float | None:
        """The limit in dollars, None for none."""
        return self._cap

    @property
    def spent(self) -> float:
        """Dollars booked."""
        with self._lock:
            return self._spent

    @property
    def reserved(self) -> float:
        """Dollars held for requests in flight."""
        with self._lock:
            return self._total_held()

    async def reserve(self, dollars: float) -> Reservation:
        """Holds money for one request, waiting where only requests in flight stand in the way.

        Raises:
            SpendLimitError: What is left would not pay for it even if everything in flight turned out to be free.
        """
        while True:
            with self._lock:
                if self._cap is not None and self._spent + dollars > self._cap:
                    raise SpendLimitError(
                        f"the next request may cost up to ${dollars:.4f}, but of the budget of ${self._cap:.4f} "
                        f"${max(self._cap - self._spent, 0.0):.4f} is left; raise budget.dollars or lower the model's max_tokens"
                    )
                if self._cap is None or self._spent + self._total_held() + dollars <= self._cap:
                    reservation = Reservation(self, dollars)
                    self._held.add(reservation)
                    return reservation
                waiter = asyncio.get_running_loop().create_future()
                self._waiting.append(waiter)
            try:
                await waiter
            finally:
                with self._lock:
                    if waiter in self._waiting:
                        self._waiting.remove(waiter)

    def _total_held(self) -> float:
        return math.fsum(reservation.dollars for reservation in self._held)

    def _settle(self, reservation: Reservation, dollars: float) -> None:
        if not dollars >= 0:
            raise ValueError(f"a bill must be 0 or more dollars, given {dollars}")
        with self._lock:
            if reservation not in self._held:
                return
            self._held.discard(reservation)
            self._spent += dollars
            waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.get_loop().call_soon_threadsafe(_wake, waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
