"""One budget and one pace for all proposers of a run: they live with the engine, and proposers ask for every attempt."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from evo.cluster.receipts import Sent, batch_event, sent_before
from evo.config import ModelSection, RunConfig
from evo.errors import SpendLimitError
from evo.records import Event, Spent
from operators.models.ledger import Held, Ledger, Reservation
from operators.models.limits import Bucket, new_ticket, worth_waiting

_GONE = "whoever asked has gone"


def endpoint_of(section: ModelSection) -> str:
    """What limits and pauses are about: sections that differ in options only ask the same endpoint."""
    return f"{section.provider} {section.base_url or ''} {section.name}"


def buckets_of(config: RunConfig) -> dict[str, Bucket]:
    """One bucket per endpoint, with the strictest limits that a section gives for it."""
    limits: dict[str, tuple[list[float], list[float]]] = {}
    for section in config.models:
        requests, tokens = limits.setdefault(endpoint_of(section), ([], []))
        requests += [section.requests_per_minute] if section.requests_per_minute else []
        tokens += [section.tokens_per_minute] if section.tokens_per_minute else []
    return {
        endpoint: Bucket(min(requests, default=None), min(tokens, default=None))
        for endpoint, (requests, tokens) in limits.items()
    }


class Spending:
    """The engine's side. Not thread-safe; it belongs to the engine's event loop.

    Everything reserved is told to `commit` before it is granted, and so is in the store before it can be spent. What recorded
    exchanges do not account for then counts as spent, whatever is killed and whenever.

    Args:
        config: The run.
        spent: What earlier sessions used; what was held at their end counts as spent.
        commit: Records what models have cost or may yet cost in all, in dollars and tokens.
        events: What earlier sessions recorded, of which batches under way are of interest.
        note: Records that a batch is under way.
    """

    def __init__(
        self,
        config: RunConfig,
        spent: Spent,
        commit: Callable[[float, int], None],
        events: Iterable[Event] = (),
        note: Callable[[Event], None] = lambda _: None,
    ) -> None:
        self._ledger = Ledger(
            config.budget.dollars,
            config.budget.tokens,
            spent_dollars=spent.dollars,
            spent_tokens=spent.tokens,
            lost_dollars=spent.held_dollars,
            lost_tokens=spent.held_tokens,
        )
        self._commit = commit
        self._note = note
        self._sent = sent_before(events)
        self._buckets = buckets_of(config)
        self._held: dict[str, tuple[str, Held]] = {}
        self._waiting: dict[str, str] = {}
        self._lives: Counter[str] = Counter()

    def life(self, worker: str) -> int:
        """How often a worker was lost before: whoever works under its name now says so with every reservation."""
        return self._lives[worker]

    async def reserve(self, worker: str, life: int, name: str, dollars: float, tokens: int) -> str:
        """Holds money and tokens, waiting while requests in flight stand in the way.

        Args:
            worker: Who asks.
            life: See `life`. A call of a dead worker may arrive after its death is known, and nobody would ever settle it.
            name: Of this reservation alone.
            dollars, tokens: The most that the request can cost.

        Returns:
            Empty, or why nothing is held.
        """
        if life != self._lives[worker]:
            return _GONE
        self._waiting[name] = worker
        try:
            held = await self._ledger.reserve(dollars, tokens)
        except SpendLimitError as error:
            return str(error)
        finally:
            still_wanted = self._waiting.pop(name, None) is not None
        if not still_wanted:
            held.settle(0.0, 0)
            return _GONE
        self._held[name] = (worker, held)
        self._update()
        return ""

    def settle(self, name: str, dollars: float, tokens: int) -> None:
        """Books the real bill of a reservation; one that still waits is withdrawn."""
        self._waiting.pop(name, None)
        if name in self._held:
            self._held.pop(name)[1].settle(dollars, tokens)
            for sent in self._sent.values():
                if sent.reservation == name:  # whoever fetches it again, for the outcome was not recorded, holds nothing more
                    sent.dollars, sent.tokens = 0.0, 0
            self._update()

    def sent(self, batch: str, requests: Mapping[str, str]) -> None:
        """Records which requests are on their way in a batch.

        Args:
            batch: The endpoint's name for it.
            requests: Name of the request → name of its reservation.
        """
        held = {request: self._held[name][1] for request, name in requests.items() if name in self._held}
        sent = {request: Sent(batch, item.dollars, item.tokens, requests[request]) for request, item in held.items()}
        self._note(batch_event(batch, sent))
        self._sent |= sent

    def regain(self, worker: str, life: int, name: str, request: str) -> tuple[str, float, int] | None:
        """Gives what a dead worker held for a request of a batch to whoever fetches its reply.

        Args:
            worker, life: Who asks.
            name: Of its reservation from here on.
            request: Name of the request.

        Returns:
            The endpoint's name for the batch, dollars and tokens; None where the request is in none, or whoever sent it is alive.
        """
        known = self._sent.get(request)
        if known is None or known.reservation in self._held or life != self._lives[worker]:
            return None
        self._held[name] = (worker, self._ledger.recover(known.dollars, known.tokens))
        known.reservation = name
        return known.batch, known.dollars, known.tokens

    def lost(self, worker: str) -> None:
        """A proposer died: what it held may have been billed, and counts as spent."""
        self._lives[worker] += 1
        self._waiting = {name: holder for name, holder in self._waiting.items() if holder != worker}
        for name in [name for name, (holder, _) in self._held.items() if holder == worker]:
            self._held.pop(name)[1].lose()

    def permission(self, endpoint: str, ticket: str, tokens: int) -> float:
        """See `operators.models.limits.Bucket.claim`."""
        return self._buckets[endpoint].claim(ticket, tokens)

    def pause(self, endpoint: str, seconds: float | None) -> None:
        """See `operators.models.limits.Bucket.pause`."""
        self._buckets[endpoint].pause(seconds)

    def correct(self, endpoint: str, tokens: int) -> None:
        """See `operators.models.limits.Bucket.correct`."""
        self._buckets[endpoint].correct(tokens)

    def _update(self) -> None:
        ledger = self._ledger
        self._commit(ledger.spent + ledger.reserved, ledger.spent_tokens + ledger.reserved_tokens)


class Reserved:
    """A `Reservation` of the run's budget.

    Args:
        name: Under which it is held.
        dollars, tokens: How much.
        settle: `Spending.settle`, or what calls it elsewhere. Nobody waits for that to arrive: what does not counts in full.
    """

    def __init__(self, name: str, dollars: float, tokens: int, settle: Callable[[str, float, int], object]) -> None:
        self.name = name
        self.dollars = dollars
        self.tokens = tokens
        self._settle = settle

    def settle(self, dollars: float, tokens: int) -> None:
        """See `operators.models.ledger.Reservation.settle`."""
        self._settle(self.name, dollars, tokens)


class SharedAccount:
    """The run's one budget, as a proposer sees it: an `operators.models.ledger.Account`.

    Args:
        engine: Handle of the `EngineActor`.
        worker: Who asks.
        life: See `Spending.life`.
        cap: The limit in dollars.
    """

    def __init__(self, engine: Any, worker: str, life: int, cap: float | None) -> None:
        self._engine = engine
        self._worker = worker
        self._life = life
        self._cap = cap

    @property
    def cap(self) -> float | None:
        """The limit in dollars, None for none."""
        return self._cap

    async def reserve(self, dollars: float, tokens: int) -> Reserved:
        """See `operators.models.ledger.Account.reserve`."""
        name = new_ticket()
        try:
            refusal: str = await self._engine.reserve.remote(self._worker, self._life, name, dollars, tokens)
        except asyncio.CancelledError:
            self._engine.settle.remote(name, 0.0, 0)  # the call itself goes on over there
            raise
        if refusal:
            raise SpendLimitError(refusal)
        return Reserved(name, dollars, tokens, self._engine.settle.remote)

    async def sent(self, batch: str, requests: Mapping[str, Reservation]) -> None:
        """See `operators.models.ledger.Account.sent`."""
        held = {request: item.name for request, item in requests.items() if isinstance(item, Reserved)}
        await self._engine.sent.remote(batch, held)

    async def regain(self, request: str) -> tuple[str, Reserved] | None:
        """See `operators.models.ledger.Account.regain`."""
        name = new_ticket()
        known: tuple[str, float, int] | None = await self._engine.regain.remote(self._worker, self._life, name, request)
        return None if known is None else (known[0], Reserved(name, *known[1:], self._engine.settle.remote))


class SharedLimiter:
    """The run's one bucket of an endpoint, as a proposer sees it: an `operators.models.limits.Limiter`.

    Args:
        engine: Handle of the `EngineActor`.
        endpoint: See `endpoint_of`.
    """

    def __init__(self, engine: Any, endpoint: str) -> None:
        self._engine = engine
        self._endpoint = endpoint

    async def permission(self, tokens: int) -> None:
        """See `operators.models.limits.Limiter.permission`."""
        ticket = new_ticket()
        while (wait := await self._engine.permission.remote(self._endpoint, ticket, tokens)) > 0:
            await asyncio.sleep(worth_waiting(wait))

    def pause(self, seconds: float | None) -> None:
        """See `operators.models.limits.Limiter.pause`."""
        self._engine.pause.remote(self._endpoint, seconds)

    def correct(self, tokens: int) -> None:
        """See `operators.models.limits.Limiter.correct`."""
        self._engine.correct.remote(self._endpoint, tokens)
