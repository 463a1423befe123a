"""The budget of requests to models, in dollars and tokens: reserved before a request is sent, settled when its bill is known.

A reservation is the most that the request can cost, so that requests in flight together can never spend more than the caps. One
ledger serves all models of a run, wherever they are: in one process `Ledger` itself, in a cluster something of the form of
`Account` that asks the one ledger of the run.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Mapping
from typing import Protocol

from evo.errors import SpendLimitError


class Reservation(Protocol):
    """Money and tokens held for one request. Settle it exactly once; settling again changes nothing."""

    @property
    def dollars(self) -> float:
        """The amount held."""

    @property
    def tokens(self) -> int:
        """The count held."""

    def settle(self, dollars: float, tokens: int) -> None:
        """Books the real bill and gives the rest back.

        Args:
            dollars, tokens: 0 where the endpoint billed nothing; what is held where the bill is unknown.
        """


class Account(Protocol):
    """Who pays for requests. A `Ledger`, or whoever asks one in another process."""

    @property
    def cap(self) -> float | None:
        """The limit in dollars, None for none."""

    async def reserve(self, dollars: float, tokens: int) -> Reservation:
        """Holds money and tokens for one request, waiting where only requests in flight stand in the way.

        Raises:
            SpendLimitError: What is left would not pay for it even if everything in flight turned out to be free.
        """

    async def sent(self, batch: str, requests: Mapping[str, Reservation]) -> None:
        """Notes, where it outlives this process, that these requests of a run (by `operators.models.base.Prompt.request`) are on their
        way in a batch.

        Args:
            batch: The endpoint's name for it.
            requests: What is held for each.
        """

    async def regain(self, request: str) -> tuple[str, Reservation] | None:
        """The batch in which a dead process of this run sent a request, and what is held for that; None where none did."""


class Held:
    """The `Reservation` of a `Ledger`."""

    def __init__(self, ledger: Ledger, dollars: float, tokens: int) -> None:
        self._ledger = ledger
        self.dollars = dollars
        self.tokens = tokens

    def settle(self, dollars: float, tokens: int = 0) -> None:
        """See `Reservation.settle`."""
        self._ledger._settle(self, dollars, tokens)

    def lose(self) -> None:
        """Whoever held it is dead: it stays held for good, for nobody knows whether the request is billed."""
        self._ledger._lose(self)


class Ledger:
    """Thread-safe, and usable from several event loops at once.

    Args:
        cap_dollars: What may be spent in all; None for no limit.
        cap_tokens: What may be read and written in all, cached or not; None for no limit.
        spent_dollars, spent_tokens: What was spent before, by an earlier part of the same run.
        lost_dollars, lost_tokens: What was in flight when an earlier part of the run died.
    """

    def __init__(
        self,
        cap_dollars: float | None = None,
        cap_tokens: int | None = None,
        *,
        spent_dollars: float = 0.0,
        spent_tokens: int = 0,
        lost_dollars: float = 0.0,
        lost_tokens: int = 0,
    ) -> None:
        if not all(cap is None or cap >= 0 for cap in (cap_dollars, cap_tokens)):
            raise ValueError(f"a cap must be 0 or more, given {cap_dollars} dollars and {cap_tokens} tokens")
        self._cap = cap_dollars
        self._cap_tokens = cap_tokens
        self._spent = spent_dollars
        self._spent_tokens = spent_tokens
        self._lost = lost_dollars
        self._lost_tokens = lost_tokens
        self._held: set[Held] = set()
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
    def spent_tokens(self) -> int:
        """Tokens booked."""
        with self._lock:
            return self._spent_tokens

    @property
    def reserved(self) -> float:
        """Dollars held for requests in flight, and for lost ones."""
        with self._lock:
            return self._held_dollars() + self._lost

    @property
    def reserved_tokens(self) -> int:
        """Tokens held for requests in flight, and for lost ones."""
        with self._lock:
            return self._held_tokens() + self._lost_tokens

    async def reserve(self, dollars: float, tokens: int = 0) -> Held:
        """See `Account.reserve`."""
        while True:
            with self._lock:
                self._refuse(dollars, tokens)
                if self._fits(dollars, tokens):
                    held = Held(self, dollars, tokens)
                    self._held.add(held)
                    return held
                waiter = asyncio.get_running_loop().create_future()
                self._waiting.append(waiter)
            try:
                await waiter
            finally:
                with self._lock:
                    if waiter in self._waiting:
                        self._waiting.remove(waiter)

    async def sent(self, batch: str, requests: Mapping[str, Reservation]) -> None:
        """See `Account.sent`: this ledger ends with its process, and so does what it knows."""

    async def regain(self, request: str) -> tuple[str, Reservation] | None:
        """See `Account.regain`."""
        return None

    def recover(self, dollars: float, tokens: int) -> Held:
        """Holds again what was held by somebody who died, because the bill will be known after all."""
        with self._lock:
            self._lost = max(0.0, self._lost - dollars)
            self._lost_tokens = max(0, self._lost_tokens - tokens)
            held = Held(self, dollars, tokens)
            self._held.add(held)
            return held

    def _refuse(self, dollars: float, tokens: int) -> None:
        gone, gone_tokens = self._spent + self._lost, self._spent_tokens + self._lost_tokens
        if self._cap is not None and gone + dollars > self._cap:
            raise SpendLimitError(
                f"the next request may cost up to ${dollars:.4f}, but of the budget of ${self._cap:.4f} "
                f"${max(self._cap - gone, 0.0):.4f} is left; raise budget.dollars or lower the model's max_tokens"
            )
        if self._cap_tokens is not None and gone_tokens + tokens > self._cap_tokens:
            raise SpendLimitError(
                f"the next request may need up to {tokens} tokens, but of the budget of {self._cap_tokens} tokens "
                f"{max(self._cap_tokens - gone_tokens, 0)} are left; raise budget.tokens or lower the model's max_tokens"
            )

    def _fits(self, dollars: float, tokens: int) -> bool:
        used, used_tokens = self._spent + self._lost + self._held_dollars(), self._spent_tokens + self._lost_tokens
        return (self._cap is None or used + dollars <= self._cap) and (
            self._cap_tokens is None or used_tokens + self._held_tokens() + tokens <= self._cap_tokens
        )

    def _held_dollars(self) -> float:
        return math.fsum(held.dollars for held in self._held)

    def _held_tokens(self) -> int:
        return sum(held.tokens for held in self._held)

    def _settle(self, held: Held, dollars: float, tokens: int) -> None:
        if not (dollars >= 0 and tokens >= 0):
            raise ValueError(f"a bill must be 0 or more, given {dollars} dollars and {tokens} tokens")
        with self._lock:
            if held not in self._held:
                return
            self._held.discard(held)
            self._spent += dollars
            self._spent_tokens += tokens
        self._wake()

    def _lose(self, held: Held) -> None:
        with self._lock:
            if held not in self._held:
                return
            self._held.discard(held)
            self._lost += held.dollars
            self._lost_tokens += held.tokens
        self._wake()

    def _wake(self) -> None:
        """Everyone who waits looks again: also those whom what is left can no longer pay for."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.get_loop().call_soon_threadsafe(_release, waiter)


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
