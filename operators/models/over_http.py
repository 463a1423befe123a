"""One call of a model over HTTP, from permission to exchange: what every client does around the streams of its own SDK."""

from __future__ import annotations

import asyncio
import dataclasses
import time
import weakref
from abc import abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import httpx2

from evo.records import Exchange, Usage
from operators.models.attempts import (
    Attempts,
    Bound,
    checked_limits,
    checked_url,
    cleaned,
    out_of_money,
    redirect_hint,
    shortened,
)
from operators.models.base import Model, Prompt, RequestError
from operators.models.bounded import ACCEPTED, TooMuchError, bound_answer
from operators.models.ledger import Account
from operators.models.limits import Limiter, LocalLimiter, OverloadedError
from operators.models.prices import Price

CONNECT_S = 10.0
"""Longest wait for a connection."""


class Closable(Protocol):
    """A client of an SDK."""

    async def close(self) -> None:
        """Gives its connections up."""


C = TypeVar("C", bound=Closable)


@dataclass
class Call:
    """What is known so far about one `complete`.

    Attributes:
        attempts: Its attempts, permitted and paid for one by one.
        texts: Pieces of the reply.
        stop: Stop reason in the words of exchanges; empty until the reply has ended.
        usage: Tokens that the endpoint told so far.
        hour: Of those put into a cache, tokens that are kept there for an hour.
        told: It told all of its counts of tokens.
        request_id: The endpoint's name for it.
        failure: Why there is no answer; empty where there is one.
        spend: The endpoint's word for an account that it no longer bills.
    """

    attempts: Attempts
    texts: list[str] = field(default_factory=list)
    stop: str = ""
    usage: Usage = field(default_factory=Usage)
    hour: int = 0
    told: bool = False
    request_id: str = ""
    failure: str = ""
    spend: str = ""


class HttpModel(Model, Generic[C]):
    """A model behind an HTTP API; a subclass sends a prompt through its SDK (`_send`) and makes clients (`_new_client`).

    Args:
        name: As the endpoint knows it.
        ledger: Pays for the requests.
        limiter: Of the endpoint; None for one of its own, which only heeds pauses.
        max_tokens: Longest reply that operators ask it for.
        base_url: Where the API is; None for the SDK's choice.
        timeout_s: Longest time of one `complete` from when it may be sent, retries included.
        silence_s: Longest silence of the endpoint within it.
        max_retries: Further attempts.
        price: None where nothing is billed, or no price is known and there is no cap in dollars.
        factor: Of the price, for a cheaper mode.
        outlives: Its requests are answered also where whoever sent them has died.

    Raises:
        ValueError: A malformed argument.
    """

    def __init__(
        self,
        name: str,
        *,
        ledger: Account,
        limiter: Limiter | None,
        max_tokens: int,
        base_url: str | None,
        timeout_s: float,
        silence_s: float,
        max_retries: int,
        price: Price | None,
        factor: float = 1.0,
        outlives: bool = False,
    ) -> None:
        super().__init__(name, max_tokens=max_tokens)
        checked_limits(timeout_s, silence_s, max_retries)
        self._ledger = ledger
        self._limiter = limiter or LocalLimiter()
        self._base_url = checked_url(base_url)
        self._timeout_s = timeout_s
        self._silence_s = silence_s
        self._max_retries = max_retries
        self._price = price
        self._factor = factor
        self._outlives = outlives
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, C] = weakref.WeakKeyDictionary()

    @property
    def least_dollars(self) -> float:
        """See `Model.least_dollars`."""
        return Bound.of(Prompt((), "?", "", self.max_tokens), self._price, self._factor).dollars

    @property
    @abstractmethod
    def _secrets(self) -> Collection[str]:
        """What must stand in no reply and no message."""

    @abstractmethod
    def _new_client(self) -> C:
        """A client of the SDK; it uses `_http` where the SDK takes one."""

    @abstractmethod
    async def _send(self, prompt: Prompt, call: Call) -> None:
        """Asks, with retries, and notes in `call` what is known as soon as it is; nothing that an endpoint answers raises.

        Raises:
            SpendLimitError: There is no money for it, and nothing was sent that may be billed.
        """

    async def complete(self, prompt: Prompt) -> Exchange:
        """See `Model.complete`."""
        bound = Bound.of(prompt, self._price, self._factor)
        call = Call(Attempts(self._ledger, self._limiter, bound))
        started = time.perf_counter()
        dollars = 0.0
        try:
            await call.attempts.prepare(prompt.request if self._outlives else "")
            started = time.perf_counter()
            async with asyncio.timeout(self._timeout_s):
                await self._send(prompt, call)
        except TimeoutError:
            call.failure = f"no whole reply within {self._timeout_s:g} s"
        except OverloadedError as error:
            call.failure = str(error)
        finally:
            # Also on cancellation: what was sent may be billed, so an unknown bill counts in full.
            call.usage = bound.believed(call.usage)
            dollars = call.attempts.finish(self._bill(call))
        if call.spend and not dollars:
            raise out_of_money(self.name, call.spend, call.request_id)
        exchange = Exchange(
            model=self.name,
            prompt_hash=prompt.prompt_hash,
            template_hash=prompt.template_hash,
            prompt=prompt.text,
            reply=cleaned("".join(call.texts), self._secrets),
            stop_reason="error" if call.failure else shortened(cleaned(call.stop, self._secrets)),
            request_id=cleaned(call.request_id, self._secrets),
            latency_s=time.perf_counter() - started,
            usage=dataclasses.replace(call.usage, dollars=dollars),
        )
        if call.failure:
            # Raised here and not where the error was caught: an SDK error holds the request and, with it, the key.
            text = f"{self.name}: {call.failure} (requests sent: {call.attempts.sent})"
            raise RequestError(shortened(cleaned(text, self._secrets)), exchange)
        return exchange

    async def close(self) -> None:
        """See `Model.close`."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    def _client(self) -> C:
        """One client per event loop, for connections cannot be used from another."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = self._new_client()
        return self._clients[loop]

    @property
    def _http(self) -> dict[str, Any]:
        """Arguments of the SDKs' HTTP clients: no hop that nobody permitted, and no answer without bounds."""
        hooks = {"response": [bound_answer]}
        return {"follow_redirects": False, "event_hooks": hooks, "headers": {"accept-encoding": ACCEPTED}}

    @property
    def _timeout(self) -> httpx2.Timeout:
        return httpx2.Timeout(self._silence_s, connect=min(CONNECT_S, self._silence_s))

    def _bill(self, call: Call) -> tuple[float, int] | None:
        """What the last attempt cost; None where the endpoint did not tell, or told what cannot be."""
        if call.failure or not call.stop or not call.told or call.usage.claimed_tokens:
            return None
        dollars = self._price.of(call.usage, call.hour) * self._factor if self._price else 0.0
        return dollars, call.usage.tokens


class StatusError(Protocol):
    """What the errors of the SDKs with a status have in common."""

    @property
    def status_code(self) -> int:
        """HTTP status."""


def with_hint(error: StatusError, words: Collection[object], said: object) -> str:
    """One line about an error with a status: the endpoint's words for its kind, its message, and what to do about it."""
    told = _one_line(said or "")
    kinds = " ".join(_one_line(word) for word in (error.status_code, *words) if word)
    return kinds + (f": {told}" if told else "") + redirect_hint(error.status_code)


def stream_trouble(said: object) -> str:
    """One line about an error that an endpoint told in the midst of its answer."""
    return f"the stream ended with an error: {_one_line(said)}"


def transport_trouble(error: Exception, timeouts: tuple[type[Exception], ...], connection: type[Exception]) -> str:
    """One line about an error without a status, without the request it holds.

    Args:
        error: Of the SDK, or whatever it let through.
        timeouts, connection: The SDK's own classes of those.
    """
    cause = error.__cause__ or error
    if isinstance(cause, TooMuchError | OverloadedError):
        return str(cause)
    if isinstance(error, (*timeouts, httpx2.TimeoutException)):
        return "the endpoint was silent for too long"
    if isinstance(error, (connection, httpx2.TransportError)):
        return f"the connection failed ({type(cause).__name__})"
    return f"the answer is no message stream ({type(error).__name__})"


def _one_line(said: object) -> str:
    """Whatever an endpoint put there, whole: what is cut before the key is taken out may end in half a key."""
    return " ".join(str(said).split())
