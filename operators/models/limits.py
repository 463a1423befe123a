"""How fast one endpoint may be asked: one bucket for everyone who asks it, in order of arrival, with pauses that bind all.

A bucket decides and does not wait: whoever wants to send claims with a ticket of its own until the answer is 0, and sleeps in between
as long as the answer says. So it can live in one process and serve many, a caller that died leaves nothing behind but a ticket
that lapses, and every decision is a function of the claims and of the clock.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Callable
from typing import Protocol

from evo.errors import ModelError

MINUTE_S = 60.0

BURST_S = 6.0
"""An idle endpoint may be sent at once what the limit allows in this time: hosted limits are enforced over less than a minute."""

LAPSE_S = 10.0
"""A ticket that is not claimed for so long after it was told to come back is dropped, so that the dead hold nobody up."""

LOOK_S = 15.0
"""A waiting caller looks again after so long at the latest, for others may have left the queue."""

RAMP_S = 0.25
RECOVERY_S = 10.0
"""After a pause, requests are this far apart, for so long and until the queue was empty: no herd falls on the endpoint."""

MAX_PAUSE_S = 600.0
"""No endpoint is left alone for longer than this, whatever it says."""

LEAST_PAUSE_S = 1.0
LONGEST_UNTOLD_S = 60.0
UNTOLD_SHARE = 0.25
"""How long an endpoint is left alone that cannot be reached, or does not say how long: this share of the time for which that has been so.
An outage of minutes then costs a dozen requests, and no model is given up for it."""

PATIENCE_S = 900.0
"""An endpoint that is overloaded for longer, by its own words and without a break, is waited for by nobody but who is let through
after each of its pauses, to see whether it is well again."""

_BEHIND_S = 0.1
"""When to look again, for those whose turn is only kept from them by someone before them."""


class OverloadedError(ModelError):
    """An endpoint asks everybody to wait, and has for so long that no more waiting is in proportion; nothing was sent."""


class Limiter(Protocol):
    """What a client asks before every attempt. A `LocalLimiter`, or whoever asks a bucket in another process."""

    async def permission(self, tokens: int) -> None:
        """Waits until one request of about so many tokens may be sent.

        Raises:
            OverloadedError: The endpoint is overloaded for longer than `PATIENCE_S`.
        """

    def pause(self, seconds: float | None) -> None:
        """The endpoint asked to be left alone for so long: nobody is let through before. None where nobody knows how long."""

    def correct(self, tokens: int) -> None:
        """So many tokens fewer (or, negative, more) than claimed were used."""


class Bucket:
    """Not thread-safe: it belongs to one event loop.

    Args:
        requests_per_minute: None for no limit.
        tokens_per_minute: None for no limit. A request that is larger than the burst of it counts as large as that.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not all(limit is None or limit > 0 for limit in (requests_per_minute, tokens_per_minute)):
            raise ValueError("requests_per_minute and tokens_per_minute must be positive")
        self._clock = clock
        now = clock()
        self._requests = _Level(requests_per_minute, 1.0, now)
        self._tokens = _Level(tokens_per_minute, 0.0, now)
        self._queue: dict[str, tuple[int, float]] = {}
        self._paused_until = -math.inf
        self._recovering_until = -math.inf
        self._next = -math.inf
        self._overloaded_since: float | None = None

    def claim(self, ticket: str, tokens: int) -> float:
        """Asks for one request.

        Args:
            ticket: Of this request alone; the same one for every claim until it is let through.
            tokens: About how many it will use.

        Returns:
            0 where it may be sent now; else seconds after which to claim again; infinite where that is not worth while.
        """
        now = self._clock()
        self._drop_lapsed(now)
        if now >= self._recovering_until:
            self._overloaded_since = None
        elif now < self._paused_until and self._overloaded_since is not None and now >= self._overloaded_since + PATIENCE_S:
            self._queue.pop(ticket, None)
            return math.inf
        self._queue.setdefault(ticket, (tokens, now + LAPSE_S))
        wait = self._wait(ticket, now)
        if wait > 0:
            wait = min(wait, LOOK_S)
            self._queue[ticket] = (tokens, now + wait + LAPSE_S)
            return wait
        del self._queue[ticket]
        self._requests.take(1.0, now)
        self._tokens.take(tokens, now)
        if now < self._recovering_until:
            self._next = now + RAMP_S
            if self._queue:
                self._recovering_until = max(self._recovering_until, now + RECOVERY_S)
        return 0.0

    def pause(self, seconds: float | None) -> None:
        """Lets nobody through for so long, and then one by one. A shorter pause never ends a longer one."""
        if seconds is None or seconds > 0:
            now = self._clock()
            if self._overloaded_since is None or now >= self._recovering_until:
                self._overloaded_since = now
            if seconds is None:
                lasted = now - self._overloaded_since
                seconds = min(LONGEST_UNTOLD_S, max(LEAST_PAUSE_S, UNTOLD_SHARE * lasted))
            self._paused_until = max(self._paused_until, now + min(seconds, MAX_PAUSE_S))
            self._recovering_until = max(self._recovering_until, self._paused_until + RECOVERY_S)
            self._next = max(self._next, self._paused_until)

    def correct(self, tokens: int) -> None:
        """Gives tokens back, or, negative, takes more."""
        self._tokens.take(-tokens, self._clock())

    @property
    def waiting(self) -> int:
        """How many tickets stand in the queue."""
        return len(self._queue)

    def _wait(self, ticket: str, now: float) -> float:
        """Until everyone before this ticket, and then it, could be let through if nothing else happened."""
        place, tokens = 0, 0.0
        for other, (wanted, _) in self._queue.items():
            tokens += self._tokens.bounded(wanted)
            if other == ticket:
                break
            place += 1
        waits = [self._requests.until(place + 1.0, now), self._tokens.until(tokens, now)]
        if now < self._recovering_until:
            waits.append(self._next - now + place * RAMP_S)
        return max(*waits, _BEHIND_S if place else 0.0)

    def _drop_lapsed(self, now: float) -> None:
        for ticket in [ticket for ticket, (_, lapses) in self._queue.items() if lapses < now]:
            del self._queue[ticket]


class _Level:
    """What may be taken of one limit: it fills up evenly, to a burst at most."""

    def __init__(self, per_minute: float | None, least: float, now: float) -> None:
        self._rate = math.inf if per_minute is None else per_minute / MINUTE_S
        self._burst = max(least, self._rate * BURST_S)
        self._level = self._burst
        self._at = now

    def bounded(self, amount: float) -> float:
        return min(amount, self._burst)

    def until(self, amount: float, now: float) -> float:
        """Seconds until so much will have come in."""
        if math.isinf(self._rate):
            return 0.0
        missing = amount - self._now(now)
        return missing / self._rate if missing > 1e-9 * self._burst else 0.0

    def take(self, amount: float, now: float) -> None:
        if not math.isinf(self._rate):
            self._level = min(self._burst, self._now(now) - amount)  # below 0 where a request is larger than a burst
            self._at = now

    def _now(self, now: float) -> float:
        return min(self._burst, self._level + (now - self._at) * self._rate)


class LocalLimiter:
    """The `Limiter` of a bucket in the same process.

    Args:
        bucket: Shared by whoever asks the same endpoint.
    """

    def __init__(self, bucket: Bucket | None = None) -> None:
        self._bucket = bucket or Bucket()

    async def permission(self, tokens: int) -> None:
        """See `Limiter.permission`."""
        ticket = new_ticket()
        while (wait := self._bucket.claim(ticket, tokens)) > 0:
            await asyncio.sleep(worth_waiting(wait))

    def pause(self, seconds: float | None) -> None:
        """See `Limiter.pause`."""
        self._bucket.pause(seconds)

    def correct(self, tokens: int) -> None:
        """See `Limiter.correct`."""
        self._bucket.correct(tokens)


def worth_waiting(seconds: float) -> float:
    """What a bucket said, where there is an end to it.

    Raises:
        OverloadedError: There is none.
    """
    if math.isinf(seconds):
        raise OverloadedError(f"the endpoint has asked everybody to wait for more than {PATIENCE_S:g} s")
    return seconds


def new_ticket() -> str:
    """A name that no other request has, on whatever machine it is made; not random state that anything decides by."""
    return uuid.uuid4().hex
