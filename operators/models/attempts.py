"""What every client does around each HTTP attempt, whatever its SDK: permission, money, and errors that end the run."""

from __future__ import annotations

import asyncio
import email.utils
import math
import random
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import httpx2

from evo.errors import InputError, SpendLimitError
from evo.records import Usage
from operators.models.base import Prompt
from operators.models.ledger import Account, Reservation
from operators.models.limits import Limiter
from operators.models.prices import Price

MAX_REPLY_CHARS = 2_000_000
"""A reply of 128,000 tokens has about 500,000 characters; what is longer is no answer of a model."""

OVERHEAD_TOKENS = 2_000
"""What an endpoint may add around our text (roles, system scaffolding), generously."""

_SPEND_CODES = frozenset(
    {
        # Anthropic, in error.details.error_code
        "contract_spend_limit_reached",
        "enforced_spend_limit_reached",
        "linked_organization_spend_limit_reached",
        "linked_organization_billing_unavailable",
        "organization_on_hold",
        # OpenAI and those who speak its API, in error.code or error.type
        "insufficient_quota",
        "billing_hard_limit_reached",
        "billing_not_active",
        "billing_error",
    }
)
"""Errors that no waiting mends. Some come as 429, which would otherwise be retried."""

_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 8.0
_CHARS_PER_TOKEN = 3
"""Of prompts of code, at least; only for rate limits, where an estimate does."""

_SHOWN_CHARS = 300

_MAX_TOKENS = 10**9
"""No request has more."""

_OVERLOADED = frozenset({429, 529, 503})

NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
"""Transport errors before the request left this machine: nothing can have been billed."""


@dataclass(frozen=True)
class Bound:
    """The most that one attempt can cost, read and write, and about how many tokens it will use."""

    dollars: float
    tokens: int
    likely_tokens: int
    read_tokens: int
    written_tokens: int

    @classmethod
    def of(cls, prompt: Prompt, price: Price | None, factor: float = 1.0) -> Bound:
        """For a prompt: a token has at least one byte.

        Args:
            prompt: As it will be sent.
            price: None where nothing is billed, or no price is known and there is no cap in dollars.
            factor: Of the price, for cheaper modes.
        """
        grammar = prompt.grammar.lark if prompt.grammar else ""
        asked = len(prompt.text.encode()) + len(grammar.encode()) + OVERHEAD_TOKENS
        dollars = price.bound(asked, prompt.max_tokens) * factor if price else 0.0
        likely = (len(prompt.text) + len(grammar)) // _CHARS_PER_TOKEN + prompt.max_tokens
        return cls(dollars, asked + prompt.max_tokens, likely, asked, prompt.max_tokens)

    def believed(self, usage: Usage) -> Usage:
        """The counts that an endpoint told; where no request of this kind can have so many, the most that it can, and what was told.

        Whoever is told of a thousand million tokens would take any budget for spent.
        """
        if usage.output_tokens <= self.written_tokens and usage.tokens - usage.output_tokens <= self.read_tokens:
            return usage
        return Usage(self.read_tokens, self.written_tokens, claimed_tokens=usage.tokens)


class Attempts:
    """The attempts of one call: each waits for permission and is paid for before it is sent; then `finish` settles it.

    Args:
        account: Pays.
        limiter: Of the endpoint.
        bound: Of one attempt.

    Attributes:
        sent: Attempts that were sent.
        batch: The batch in which a dead process of the run sent the request; empty where none did.
    """

    def __init__(self, account: Account, limiter: Limiter, bound: Bound) -> None:
        self._account = account
        self._limiter = limiter
        self._bound = bound
        self._open: Reservation | None = None
        self._booked = 0.0
        self._prepared = False
        self.sent = 0
        self.batch = ""

    @property
    def reservation(self) -> Reservation:
        """What is held for the attempt in flight."""
        assert self._open is not None, "asked for between `begin` and `finish`"
        return self._open

    async def prepare(self, request: str = "") -> None:
        """Waits until the first attempt may be sent; to be called before the time of a call begins to count, for others may be first.

        Args:
            request: Its name in its run, where it may be under way already: then nothing need be sent, nor waited for.

        Raises:
            SpendLimitError: There is no money for it.
        """
        known = await self._account.regain(request) if request else None
        if known is not None:
            self.batch, self._open = known
        else:
            await self._acquire()
        self._prepared = True

    async def begin(self) -> None:
        """One more attempt is sent, as soon as it may be.

        Raises:
            SpendLimitError: There is no money for it.
        """
        if not self._prepared:
            self.finish(None)  # an attempt before this one that left without an answer may have been billed
            await self._acquire()
        self._prepared = False
        self.sent += 1

    async def _acquire(self) -> None:
        await self._limiter.permission(self._bound.likely_tokens)
        try:
            self._open = await self._account.reserve(self._bound.dollars, self._bound.tokens)
        except BaseException:
            self._limiter.correct(self._bound.likely_tokens)
            raise

    def refused(self, status: int, headers: Mapping[str, str]) -> None:
        """The endpoint answered with an error status, which is never billed. One that is overloaded is left alone by everybody."""
        self.finish((0.0, 0))
        heed(self._limiter, status, headers)

    def unreached(self) -> None:
        """The endpoint could not be connected to: nothing was sent, and everybody leaves it alone for a while."""
        self.finish((0.0, 0))
        self._limiter.pause(None)

    def finish(self, bill: tuple[float, int] | None) -> float:
        """Settles the attempt in flight, if any.

        Args:
            bill: Dollars and tokens; None where they are not known, which counts in full.

        Returns:
            Dollars that the call has cost so far.
        """
        if self._open is not None:
            if self._prepared:
                bill, self._prepared = None if self.batch else (0.0, 0), False  # it was never sent, or long ago
            dollars, tokens = (self._open.dollars, self._open.tokens) if bill is None else bill
            self._open.settle(dollars, tokens)
            self._open = None
            self._booked += dollars
            if bill is not None and not self.batch:
                self._limiter.correct(self._bound.likely_tokens - tokens)
        return self._booked


def heed(limiter: Limiter, status: int, headers: Mapping[str, str]) -> None:
    """Leaves an endpoint alone that says it is overloaded, for as long as it says."""
    if status in _OVERLOADED:
        limiter.pause(retry_after_s(headers) or None)


async def back_off(number: int, headers: Mapping[str, str]) -> None:
    """Waits before a further attempt: as long as the endpoint says, else longer every time, with jitter.

    Args:
        number: Of the attempt that failed, from 0.
        headers: Of its answer, if there was one.
    """
    told = retry_after_s(headers)
    # Jitter only keeps callers apart; nothing in a search depends on it.
    usual = min(_BACKOFF_S * 2.0**number, _MAX_BACKOFF_S) * random.uniform(0.75, 1.0)
    await asyncio.sleep(usual if told is None else told)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """What ``retry-after-ms`` or ``retry-after`` says (seconds, or a date), in seconds; None where it says nothing usable."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        if math.isfinite(seconds) and seconds >= 0:
            return seconds
    try:
        return max(0.0, email.utils.parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - time.time())
    except (TypeError, ValueError, IndexError, OverflowError):
        return None


def spend_code(status: int, body: object) -> str:
    """Why the endpoint will not bill this account, empty for every other error."""
    error = body.get("error", body) if isinstance(body, dict) else None
    if isinstance(error, dict):
        details = error.get("details")
        codes = (details.get("error_code") if isinstance(details, dict) else None, error.get("code"), error.get("type"))
        for code in codes:
            if isinstance(code, str) and code in _SPEND_CODES:
                return code
    return "billing_error" if status == 402 else ""


def redirect_hint(status: int) -> str:
    """What to do about an endpoint that points elsewhere; empty for every other status.

    Redirects are not followed: each hop would be a request that nobody permitted or set money aside for.
    """
    return " (redirects are not followed: give the final address as base_url)" if 300 <= status < 400 else ""


def token_count(value: object) -> int:
    """A count of tokens as an endpoint gave it, None being none.

    Raises:
        ValueError: It is no count.
    """
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_TOKENS:
        raise ValueError(f"{value!r} is no count of tokens")
    return value


def out_of_money(model: str, code: str, request_id: str | None) -> SpendLimitError:
    """What ends the search where the endpoint refuses to bill."""
    return SpendLimitError(f"{model}: the endpoint no longer bills this account ({code}; request {request_id or 'without id'})")


def cleaned(text: str, secrets: Collection[str]) -> str:
    """Without our keys, which a proxy might echo, and without characters that a store cannot hold."""
    for secret in secrets:
        text = text.replace(secret, "[key]")
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def shortened(text: str) -> str:
    """What an endpoint said, in a length that can be shown: its beginning and its end. Only for text that is `cleaned` already."""
    return text if len(text) <= 2 * _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]} … {text[-_SHOWN_CHARS:]}"


def checked_key(key: str, variable: str, model: str) -> str:
    """A key, as it can be sent.

    Raises:
        InputError: It has characters that no key has; it is not shown.
    """
    if not all("!" <= character <= "~" for character in key):
        action = f"{variable} holds no key: it has blanks or characters beyond ASCII; set it to the whole key and nothing else"
        raise InputError(f"model {model}", action=action)
    return key


def checked_url(base_url: str | None) -> str | None:
    """The URL.

    Raises:
        ValueError: It is none, or has a place in which keys are put.
    """
    if base_url is not None and (not base_url.startswith(("http://", "https://")) or set(base_url) & set("@?#")):
        said = "base_url must begin with http:// or https:// and hold no password and no query: keys come from the environment"
        raise ValueError(said)
    return base_url


def checked_limits(timeout_s: float, silence_s: float, max_retries: int) -> None:
    """Checks what every client takes.

    Raises:
        ValueError: One is out of range.
    """
    if not (timeout_s > 0 and silence_s > 0):
        raise ValueError(f"timeout_s {timeout_s} and silence_s {silence_s} must be positive")
    if not 0 <= max_retries <= 10:
        raise ValueError(f"max_retries {max_retries} must be 0 … 10")
