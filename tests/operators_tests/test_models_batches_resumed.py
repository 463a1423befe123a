"""A process that dies while a batch is under way: the next one of the run fetches the replies, and nothing is paid for twice."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from evo.cluster.receipts import sent_before
from evo.cluster.spending import Reserved, Spending
from evo.config import RunConfig
from evo.errors import SpendLimitError
from evo.records import Event, EventKind, Exchange, Spent
from evo.search.settings import Budget
from operators.models.anthropic import AnthropicModel
from operators.models.base import Prompt, RequestError
from operators.models.ledger import Reservation
from operators.models.limits import new_ticket
from tests.operators_tests.loopback import Failure, Loopback, Lost, Message, reply
from tests.operators_tests.model_harness import quiet_environment

NAMES = ("7-1", "9-1", "9-2")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    quiet_environment(monkeypatch, tmp_path, ["anthropic"])


class Run:
    """What a store keeps of one run over its sessions, and the account of the present one."""

    cap = 5.0

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.committed = self.latest = (0.0, 0)
        self.recorded = (0.0, 0)
        self.begin()

    def begin(self) -> None:
        """Another session, after the one before was killed."""
        held = self.committed[0] - self.recorded[0], self.committed[1] - self.recorded[1]
        config = RunConfig(name="x", tasks=("softmax",), budget=Budget(dollars=self.cap, tokens=10**6))
        spent = Spent(dollars=self.recorded[0], tokens=self.recorded[1], held_dollars=held[0], held_tokens=held[1])
        self.spending = Spending(config, spent, self._commit, tuple(self.events), self.events.append)

    def record(self, exchange: Exchange) -> None:
        """An exchange reaches the store, and with it what is held at that moment."""
        self.committed = self.latest
        self.recorded = self.recorded[0] + exchange.usage.dollars, self.recorded[1] + exchange.usage.tokens

    async def reserve(self, dollars: float, tokens: int) -> Reserved:
        name = new_ticket()
        refusal = await self.spending.reserve("p", self.spending.life("p"), name, dollars, tokens)
        if refusal:
            raise SpendLimitError(refusal)
        return Reserved(name, dollars, tokens, self.spending.settle)

    async def sent(self, batch: str, requests: Mapping[str, Reservation]) -> None:
        self.spending.sent(batch, {name: item.name for name, item in requests.items() if isinstance(item, Reserved)})

    async def regain(self, request: str) -> tuple[str, Reserved] | None:
        name = new_ticket()
        known = self.spending.regain("p", self.spending.life("p"), name, request)
        return None if known is None else (known[0], Reserved(name, *known[1:], self.spending.settle))

    def _commit(self, dollars: float, tokens: int) -> None:
        self.latest = dollars, tokens
        self.committed = max(dollars, self.committed[0]), max(tokens, self.committed[1])  # a rise is in the store at once


def model(server: Loopback, run: Run) -> AnthropicModel:
    batch = {
        "batch": True,
        "batch_size": len(NAMES),
        "batch_window_s": 0.05,
        "batch_poll_s": 0.02,
        "timeout_s": 10.0,
        "silence_s": 5.0,
    }
    return AnthropicModel("claude-opus-5-5", base_url=server.url, ledger=run, **batch)  # type: ignore[arg-type]


def prompt(name: str, version: str = "") -> Prompt:
    return Prompt(("Rules. " * 300,), f"Question {name}{version}.", "hash", 500, request=name)


async def killed(server: Loopback, run: Run, names: tuple[str, ...] = NAMES) -> None:
    """Asks, and is no more as soon as the batch is recorded. What a task does when it ends does not happen."""
    client = model(server, run)
    tasks = [asyncio.create_task(client.complete(prompt(name))) for name in names]
    while not run.events:
        await asyncio.sleep(0.01)
    events, committed = list(run.events), run.committed
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await client.close()
    run.events, run.committed = events, committed


async def asked(server: Loopback, run: Run, *prompts: Prompt) -> list[Exchange | BaseException]:
    client = model(server, run)
    try:
        return await asyncio.gather(*(client.complete(item) for item in prompts), return_exceptions=True)
    finally:
        await client.close()


def echo(body: dict[str, Any]) -> Message:
    return reply(f"answer to {body['messages'][0]['content']}")


def test_replies_of_a_dead_process_are_fetched_and_paid_once() -> None:
    run = Run()
    with Loopback(echo, looks=10) as server:
        asyncio.run(killed(server, run))
        held = run.committed
        run.begin()
        # By now the search has learned something, so that it would ask in other words; the reply to the first ones will do.
        results = asyncio.run(asked(server, run, *(prompt(name, " anew") for name in NAMES), prompt("11-1")))
    replies = [item.reply for item in results if isinstance(item, Exchange)]
    assert replies == [f"answer to Question {name}." for name in (*NAMES, "11-1")]
    assert server.batches == [3, 1]
    assert held[0] > 0
    for item in results:
        assert isinstance(item, Exchange)
        run.record(item)
    run.begin()
    all_that_is_left = run.cap - run.recorded[0] - 1e-6
    assert asyncio.run(run.spending.reserve("p", 0, "next", all_that_is_left, 10)) == "", "nothing is held for the dead any more"


def test_what_a_dead_process_held_is_given_to_who_fetches_and_settled_by_the_bill() -> None:
    run = Run()
    with Loopback(echo, looks=1) as server:
        asyncio.run(killed(server, run))
        run.begin()
        (exchange,) = asyncio.run(asked(server, run, prompt("7-1")))
        assert isinstance(exchange, Exchange)
        held = sent_before(run.events)
    left = run.cap - exchange.usage.dollars - held["9-1"].dollars - held["9-2"].dollars
    refusal = asyncio.run(run.spending.reserve("p", 0, "too much", left + 1e-6, 10))
    assert "is left" in refusal
    assert asyncio.run(run.spending.reserve("p", 0, "just so", left - 1e-6, 10)) == ""


def test_a_proposer_that_dies_alone_is_succeeded_in_the_same_session() -> None:
    run = Run()
    with Loopback(echo, looks=10**6) as server:

        async def scenario() -> list[Exchange | BaseException]:
            first = model(server, run)
            dead = [asyncio.create_task(first.complete(prompt(name))) for name in NAMES]
            while not run.events:
                await asyncio.sleep(0.01)
            assert await run.regain("9-1") is None, "whoever sent it is alive"
            run.spending.lost("p")
            server.end_batches()
            second = model(server, run)
            try:
                return await asyncio.gather(*(second.complete(prompt(name)) for name in NAMES), return_exceptions=True)
            finally:
                for task in dead:
                    task.cancel()
                await asyncio.gather(*dead, return_exceptions=True)
                await asyncio.gather(first.close(), second.close())

        results = asyncio.run(scenario())
    assert [item.reply for item in results if isinstance(item, Exchange)] == [f"answer to Question {name}." for name in NAMES]
    assert server.batches == [3]


def test_a_request_that_the_batch_lost_fails_and_is_not_asked_again() -> None:
    run = Run()
    with Loopback([Lost("expired")], looks=1) as server:
        asyncio.run(killed(server, run, ("7-1",)))
        run.begin()
        (error,) = asyncio.run(asked(server, run, prompt("7-1")))
    assert isinstance(error, RequestError)
    assert "this request of the batch expired" in str(error)
    assert server.batches == [1]


def test_a_batch_that_the_endpoint_no_longer_knows_counts_in_full() -> None:
    run = Run()
    with Loopback(echo, looks=1, looking=[Failure(404, "not_found_error")]) as server:
        asyncio.run(killed(server, run, ("7-1",)))
        run.begin()
        (error,) = asyncio.run(asked(server, run, prompt("7-1")))
    assert isinstance(error, RequestError)
    assert error.exchange.usage.dollars == pytest.approx(sent_before(run.events)["7-1"].dollars)


@pytest.mark.parametrize(
    "text", ["", "no JSON", "[]", "{}", '{"batch": "b", "requests": {"7-1": [-1.0, 5]}}', '{"batch": 1, "requests": {"7-1": 3}}']
)
def test_a_record_that_is_none_is_passed_over(text: str) -> None:
    assert sent_before([Event(EventKind.BATCH, "", 0, "", "", text)]) == {}
