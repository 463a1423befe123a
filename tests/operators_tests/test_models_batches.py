"""Message Batches: half the price, replies matched by id in any order, and no batch that is paid for twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evo.errors import SpendLimitError
from evo.records import Exchange
from operators.models.anthropic import AnthropicModel
from operators.models.base import Prompt, RequestError
from operators.models.ledger import Ledger
from operators.models.prices import read_prices
from tests.operators_tests.loopback import Answer, Failure, Loopback, Lost, Message, Raw, reply
from tests.operators_tests.model_harness import quiet_environment

MODEL = "claude-opus-5-5"
Result = Exchange | BaseException


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    quiet_environment(monkeypatch, tmp_path, ["anthropic"])


def model(server: Loopback, **options: Any) -> AnthropicModel:
    batch = {"batch": True, "batch_window_s": 0.1, "batch_poll_s": 0.02}
    settings = {"ledger": Ledger(5.0), "timeout_s": 10.0, "silence_s": 1.0, **batch, **options}
    return AnthropicModel(MODEL, base_url=server.url, **settings)


def ask(client: AnthropicModel, count: int) -> list[Result]:
    async def all_of_them() -> list[Result]:
        try:
            prompts = (Prompt(("Rules. " * 300,), f"Kernel {number}.", "hash", 500) for number in range(count))
            return await asyncio.gather(*(client.complete(prompt) for prompt in prompts), return_exceptions=True)
        finally:
            await client.close()

    return asyncio.run(all_of_them())


def echo(body: dict[str, Any]) -> Message:
    return reply(f"answer to {body['messages'][0]['content']}")


def test_requests_are_gathered_and_every_one_gets_its_own_reply_at_half_the_price() -> None:
    ledger = Ledger(5.0, 1_000_000)
    with Loopback(echo, looks=3) as server:
        results = ask(model(server, ledger=ledger, batch_size=8, batch_window_s=1.0), 20)
    assert [result.reply for result in results if isinstance(result, Exchange)] == [f"answer to Kernel {n}." for n in range(20)]
    assert server.batches == [8, 8, 4]
    assert server.bodies[0].keys() == {"model", "max_tokens", "messages", "system"}
    assert server.bodies[0]["system"][0]["cache_control"] == {"type": "ephemeral"}
    price = read_prices().models[MODEL]
    full = sum(price.dollars(fresh=b.fresh, write_5m=b.written, read=b.read, output=b.output) for b in server.bills)
    assert ledger.spent == pytest.approx(full / 2)
    assert {result.request_id for result in results if isinstance(result, Exchange)} == {"batch0", "batch1", "batch2"}


def test_each_request_of_a_batch_fails_alone_and_is_not_billed() -> None:
    script: list[Answer] = [Lost("expired"), Lost("canceled"), Failure(400, "invalid_request_error", "too long"), reply("good")]
    ledger = Ledger(5.0)
    with Loopback(script) as server:
        results = ask(model(server, ledger=ledger), 4)
    said = [str(result) for result in results]
    assert "this request of the batch expired" in said[0]
    assert "the batch canceled this request" in said[1]
    assert "errored: invalid_request_error: too long" in said[2]
    good = results[3]
    assert isinstance(good, Exchange)
    assert ledger.spent == good.usage.dollars
    assert all(isinstance(result, RequestError) and result.exchange.stop_reason == "error" for result in results[:3])


def test_a_batch_that_was_surely_not_made_is_asked_for_again() -> None:
    with Loopback(echo, creating=[Failure(529, "overloaded_error", headers={"retry-after": "0.05"})] * 2) as server:
        assert all(isinstance(result, Exchange) for result in ask(model(server, batch_size=2), 2))
    assert (server.created, server.batches) == (3, [2])


@pytest.mark.parametrize("lasting", [Failure(500, "api_error", headers={"retry-after": "0.02"}), Failure(400, "bad")])
def test_a_batch_that_is_never_made_costs_bounded_attempts_and_nothing_else(lasting: Failure) -> None:
    ledger = Ledger(5.0)
    with Loopback(echo, creating=[lasting] * 50) as server:
        results = ask(model(server, ledger=ledger, batch_size=3), 3)
    assert server.created == (3 if lasting.status == 500 else 1)
    assert all(isinstance(result, RequestError) for result in results)
    assert (ledger.spent, ledger.reserved) == (0, 0)


@pytest.mark.parametrize("answer", [Raw(b"<html>", "text/html"), Raw(b"{}", "application/json"), Raw(b"[1]", "application/json")])
def test_a_batch_that_may_have_been_made_is_not_made_again_and_counts_in_full(answer: Raw) -> None:
    ledger = Ledger(5.0)
    with Loopback(echo, creating=[answer] * 5) as server:
        results = ask(model(server, ledger=ledger, batch_size=2), 2)
    assert server.created == 1
    assert all(isinstance(result, RequestError) for result in results)
    assert ledger.spent > 2 * 500 * 10 / 1e6


def test_no_more_money_ends_the_search() -> None:
    ledger = Ledger(5.0)
    failures: Sequence[Answer] = [Failure(402, "billing_error")]
    with Loopback(echo, creating=failures) as server:
        results = ask(model(server, ledger=ledger), 3)
    assert all(isinstance(result, SpendLimitError) for result in results)
    assert ledger.spent == 0


def test_who_gives_up_before_the_batch_is_sent_is_neither_sent_nor_billed() -> None:
    ledger = Ledger(5.0)

    async def given_up(client: AnthropicModel) -> list[Exchange]:
        early, *others = (asyncio.create_task(client.complete(Prompt((), name, "hash", 500))) for name in ("Early.", "Late."))
        await asyncio.sleep(0.05)
        early.cancel()
        await asyncio.gather(early, return_exceptions=True)
        others += (asyncio.create_task(client.complete(Prompt((), f"Later {number}.", "hash", 500))) for number in range(2))
        results = await asyncio.gather(*others)
        await client.close()
        return results

    with Loopback(echo) as server:
        results = asyncio.run(given_up(model(server, ledger=ledger, batch_size=3, batch_window_s=600.0, timeout_s=60.0)))
    assert server.batches == [3]
    assert not [body for body in server.bodies if "Early." in str(body)]
    assert ledger.spent == pytest.approx(sum(result.usage.dollars for result in results))


def test_looks_that_fail_in_passing_lose_no_batch() -> None:
    ledger = Ledger(5.0)
    busy = Failure(503, "api_error", headers={"retry-after": "0.01"})
    with Loopback(echo, looking=[busy] * 12) as server:  # more than the client itself tries again
        results = ask(model(server, ledger=ledger, batch_size=2, timeout_s=20.0), 2)
    assert all(isinstance(result, Exchange) for result in results), results
    assert (server.batches, ledger.reserved) == ([2], 0)


def test_a_batch_whose_key_is_no_longer_taken_is_given_up_at_once() -> None:
    with Loopback(echo, looking=[Failure(401, "authentication_error")]) as server:
        results = ask(model(server), 2)
    assert all("401 authentication_error" in str(result) for result in results)


def test_a_batch_that_does_not_end_is_given_up_and_counts_in_full() -> None:
    ledger = Ledger(5.0)
    with Loopback(echo, looks=1_000_000) as server:
        results = ask(model(server, ledger=ledger, timeout_s=0.5), 2)
    assert all("no whole reply within 0.5 s" in str(result) for result in results)
    assert ledger.spent > 2 * 500 * 10 / 1e6
    assert ledger.reserved == 0


def test_a_budget_too_small_for_one_sends_nothing() -> None:
    with Loopback(echo) as server:
        results = ask(model(server, ledger=Ledger(0.001)), 2)
    assert all(isinstance(result, SpendLimitError) for result in results)
    assert server.created == 0
