"""Message Batches: requests are gathered, sent as one, polled for, and matched by their ids; half the price, within a day.

A batch is created at most once: where nobody knows whether the endpoint took it, its requests count as failed and as spent in full,
rather than being sent, and paid for, a second time. What it is called is written down with the names of its requests as soon as it is
known, so that a later process of the same run fetches the replies of one that died.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx2
from anthropic.types import Message
from anthropic.types.messages import MessageBatchIndividualResponse

from evo.errors import SpendLimitError
from operators.models.anthropic_attempts import described
from operators.models.attempts import NEVER_SENT, back_off, heed, out_of_money, spend_code
from operators.models.ledger import Account, Reservation
from operators.models.limits import Limiter, OverloadedError

PRICE_FACTOR = 0.5
"""Of the standard prices, for every kind of token."""

_LONGEST_POLL_S = 60.0
_POLL_GROWTH = 1.5
_CREATE_RETRIES = 2


class BatchFailure(Exception):
    """A request of a batch that got no message.

    Args:
        reason: One line.
        billed: Whether it may be billed all the same.
    """

    def __init__(self, reason: str, *, billed: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.billed = billed


@dataclass
class BatchTicket:
    """One request on its way.

    Attributes:
        reservation: What is held for it.
        request: Its name in its run, if it has one.
        sent: It is part of a batch that was sent.
        batch_id: The endpoint's name for that.
    """

    reservation: Reservation
    request: str = ""
    sent: bool = False
    batch_id: str = ""


@dataclass(frozen=True)
class _Waiting:
    params: Any  # none where it was sent before
    ticket: BatchTicket
    future: asyncio.Future[Message]


class Batches:
    """Gathers and sends; belongs to one event loop.

    Args:
        client: Of this loop.
        limiter: Creating a batch is one request of the endpoint.
        account: Notes what is on its way.
        model: Name for messages.
        size: Requests after which a batch is sent at once; the endpoint takes 100,000.
        window_s: Longest time that the first request of a batch waits for others.
        poll_s: Time to the first look whether a batch has ended; later looks are further apart, up to a minute.
    """

    def __init__(
        self,
        client: anthropic.AsyncAnthropic,
        limiter: Limiter,
        account: Account,
        model: str,
        *,
        size: int,
        window_s: float,
        poll_s: float,
    ) -> None:
        self._client = client
        self._limiter = limiter
        self._account = account
        self._model = model
        self._size = size
        self._window_s = window_s
        self._poll_s = poll_s
        self._gathered: dict[str, _Waiting] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._earlier: dict[str, dict[str, _Waiting]] = {}

    async def ask(self, params: Mapping[str, Any], ticket: BatchTicket) -> Message:
        """The message for one request.

        Raises:
            BatchFailure: There is none.
            SpendLimitError: The endpoint no longer bills this account.
        """
        loop = asyncio.get_running_loop()
        custom_id = ticket.request if ticket.request and ticket.request not in self._gathered else uuid.uuid4().hex
        waiting = _Waiting(params, ticket, loop.create_future())
        self._gathered[custom_id] = waiting
        if len(self._gathered) >= self._size:
            self._send()
        elif self._timer is None:
            self._timer = loop.call_later(self._window_s, self._send)
        try:
            return await waiting.future
        finally:
            self._gathered.pop(custom_id, None)  # whoever gives up in time is not sent

    async def fetch(self, batch_id: str, ticket: BatchTicket) -> Message:
        """The message for a request that was sent in a batch by a process that is dead.

        Raises:
            BatchFailure: There is none.
        """
        ticket.sent, ticket.batch_id = True, batch_id
        waiting = _Waiting(None, ticket, asyncio.get_running_loop().create_future())
        if batch_id not in self._earlier:
            self._earlier[batch_id] = {ticket.request: waiting}
            self._start(self._collect_earlier(batch_id))
        else:
            self._earlier[batch_id][ticket.request] = waiting
        return await waiting.future

    async def close(self) -> None:
        """Gives up on everything on its way."""
        if self._timer is not None:
            self._timer.cancel()
        for task in tuple(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        requests, self._gathered = self._gathered, {}
        if requests:
            self._start(self._run(requests))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _sent(self, requests: dict[str, _Waiting]) -> str:
        """Creates a batch and notes it; its name."""
        batch_id = await self._create(requests)
        for waiting in requests.values():
            waiting.ticket.batch_id = batch_id
        named = {name: waiting.ticket.reservation for name, waiting in requests.items() if name == waiting.ticket.request}
        if named:
            await self._account.sent(batch_id, named)
        return batch_id

    async def _collect_earlier(self, batch_id: str) -> None:
        while requests := self._earlier[batch_id]:  # who comes while results are read is served by the next look
            self._earlier[batch_id] = {}
            await self._run(requests, batch_id)
        del self._earlier[batch_id]

    async def _run(self, requests: dict[str, _Waiting], batch_id: str = "") -> None:
        failure: Exception = BatchFailure("the batch was given up", billed=True)
        try:
            await self._collect(batch_id or await self._sent(requests), requests)
            failure = BatchFailure("the batch ended without this request", billed=True)
        except (BatchFailure, SpendLimitError) as error:
            failure = error
        except OverloadedError as error:
            failure = BatchFailure(str(error), billed=False)
        except Exception as error:  # noqa: BLE001 - only SDK code runs here; it raises anything on answers that are none
            failure = BatchFailure(described(error), billed=True)
        finally:
            for waiting in requests.values():
                if not waiting.future.done():
                    waiting.future.set_exception(failure)
                    waiting.future.exception()  # whoever gave up does not ask for it

    async def _create(self, requests: dict[str, _Waiting]) -> str:
        client = self._client.with_options(max_retries=0)
        body = [{"custom_id": custom_id, "params": waiting.params} for custom_id, waiting in requests.items()]
        number = 0
        while True:
            await self._limiter.permission(0)
            for waiting in requests.values():
                waiting.ticket.sent = True
            try:
                batch = await client.messages.batches.create(requests=body)  # type: ignore[arg-type] # params made by our client
            except anthropic.APIStatusError as error:
                code = spend_code(error.status_code, error.body)
                if code:
                    raise out_of_money(self._model, code, error.request_id) from None
                heed(self._limiter, error.status_code, error.response.headers)
                if number == _CREATE_RETRIES or not (error.status_code == 429 or error.status_code >= 500):
                    raise BatchFailure(described(error), billed=False) from None
                headers: httpx2.Headers = error.response.headers
            except anthropic.APIConnectionError as error:
                if isinstance(error.__cause__, NEVER_SENT):
                    self._limiter.pause(None)
                raise BatchFailure(described(error), billed=not isinstance(error.__cause__, NEVER_SENT)) from None
            else:
                if not isinstance(batch.id, str) or not batch.id:
                    raise BatchFailure("the endpoint gave the batch no id", billed=True)
                return batch.id
            await back_off(number, headers)
            number += 1

    async def _collect(self, batch_id: str, requests: Mapping[str, _Waiting]) -> None:
        """Looks until the batch has ended and its results are read, or nobody waits for them any more.

        A look that fails in passing is made again: the batch goes on without us, and its replies are paid for.
        """
        interval = self._poll_s
        while not all(waiting.future.done() for waiting in requests.values()):
            await asyncio.sleep(interval)
            interval = min(interval * _POLL_GROWTH, max(_LONGEST_POLL_S, self._poll_s))
            try:
                batch = await self._client.messages.batches.retrieve(batch_id)
                if batch.processing_status == "ended":
                    await self._read_results(batch_id, requests)
                    return
            except anthropic.APIStatusError as error:
                if not _passing(error.status_code):
                    raise
                heed(self._limiter, error.status_code, error.response.headers)
            except (anthropic.APIConnectionError, httpx2.TransportError):
                continue

    async def _read_results(self, batch_id: str, requests: Mapping[str, _Waiting]) -> None:
        async for entry in await self._client.messages.batches.results(batch_id):
            known = requests.get(entry.custom_id)
            if known is not None:
                _resolve(known.future, entry)


def _passing(status: int) -> bool:
    return status in (408, 409, 429) or status >= 500


def _resolve(future: asyncio.Future[Message], entry: MessageBatchIndividualResponse) -> None:
    if future.done():
        return
    result = entry.result
    if result.type == "succeeded":
        future.set_result(result.message)
        return
    reason = f"the batch {result.type} this request" if result.type == "canceled" else f"this request of the batch {result.type}"
    if result.type == "errored":
        said = " ".join(str(result.error.error.message).split())[:300]
        reason = f"{reason}: {result.error.error.type}: {said}"
    future.set_exception(BatchFailure(reason, billed=False))
    future.exception()
