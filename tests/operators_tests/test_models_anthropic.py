"""The real anthropic client over real HTTP: what it is sent, what its replies become, and what they cost."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from evo.errors import SpendLimitError
from evo.records import Exchange
from operators.models.anthropic import AnthropicModel
from operators.models.base import Prompt
from operators.models.ledger import Ledger
from operators.models.prices import read_prices
from tests.operators_tests.anthropic_calls import GOOD, MODEL, PROMPT, complete, model
from tests.operators_tests.loopback import Loopback, Message, Raw, reply
from tests.operators_tests.model_harness import quiet_environment


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    quiet_environment(monkeypatch, tmp_path, ["anthropic"])


def test_a_reply_becomes_an_exchange_with_its_bill() -> None:
    ledger = Ledger(5.0)
    with Loopback([reply(GOOD)]) as server:
        exchange = complete(model(server, ledger=ledger, effort="high"))
    bill = server.bills[0]
    assert (exchange.reply, exchange.stop_reason, exchange.request_id, exchange.model) == (GOOD, "end_turn", "req_1", MODEL)
    assert exchange.prompt == PROMPT.text
    assert exchange.prompt_hash == PROMPT.prompt_hash
    assert (exchange.usage.input_tokens, exchange.usage.output_tokens) == (bill.fresh, bill.output)
    # $4 fresh, $5 written to the cache, $20 out, per million
    assert exchange.usage.dollars == pytest.approx((bill.fresh * 4 + bill.written * 5 + bill.output * 20) / 1e6)
    assert ledger.spent == exchange.usage.dollars
    assert ledger.reserved == 0
    body = server.bodies[0]
    assert (body["model"], body["max_tokens"], body["stream"]) == (MODEL, 1_000, True)
    assert body["output_config"] == {"effort": "high"}
    assert Exchange.from_json(json.loads(json.dumps(exchange.to_json()))) == exchange


def test_the_stable_prefix_is_cached_and_paid_as_such() -> None:
    with Loopback([reply(GOOD)]) as server:
        client = model(server)
        first = complete(client)
        second = complete(client, Prompt(PROMPT.stable, "Another kernel.", "hash", 1_000))
    assert [block["cache_control"] for block in server.bodies[0]["system"]] == [{"type": "ephemeral"}] * 2
    assert server.bodies[1]["system"] == server.bodies[0]["system"]
    assert "cache_control" not in json.dumps(server.bodies[0]["messages"])
    assert first.usage.cache_write_tokens > 900
    assert second.usage.cache_read_tokens == first.usage.cache_write_tokens
    assert second.usage.dollars < first.usage.dollars


def test_more_tokens_than_may_be_asked_for_without_streaming() -> None:
    with Loopback([reply(GOOD)]) as server:
        assert complete(model(server, max_tokens=64_000), Prompt((), "Long.", "hash", 64_000)).reply == GOOD


@pytest.mark.parametrize("stop_reason", ["refusal", "max_tokens", "model_context_window_exceeded", "pause_turn"])
def test_a_stop_reason_is_handed_on(stop_reason: str) -> None:
    with Loopback([Message(("I would rather",), stop_reason)]) as server:
        exchange = complete(model(server))
    assert exchange.stop_reason == stop_reason
    assert server.count == 1
    assert exchange.usage.dollars > 0


@pytest.mark.parametrize(
    ("begun", "ended"),
    [
        ({}, {}),
        ({"input_tokens": 9, "output_tokens": 1}, {}),
        ({"output_tokens": 1}, {"output_tokens": 9}),
        ({"input_tokens": 0}, {"output_tokens": 9}),
    ],
)
def test_a_reply_with_half_of_its_usage_counts_in_full(begun: dict[str, int], ended: dict[str, int]) -> None:
    message = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "usage": begun,
    }
    events = (
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": GOOD}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": ended},
        {"type": "message_stop"},
    )
    ledger = Ledger(5.0, 1_000_000)
    with Loopback([Raw("".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events).encode())]) as server:
        exchange = complete(model(server, ledger=ledger))
    assert exchange.reply == GOOD
    assert ledger.spent == exchange.usage.dollars > 1_000 * 20 / 1e6
    assert ledger.spent_tokens > 5_000


def test_cancelling_gives_the_reservation_up_as_spent() -> None:
    ledger = Ledger(5.0)

    async def cancelled(server: Loopback) -> None:
        task = asyncio.create_task(model(server, ledger=ledger).complete(PROMPT))
        while not server.count:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with Loopback([Message((GOOD,), delay_s=30)]) as server:
        asyncio.run(cancelled(server))
    assert ledger.reserved == 0
    assert ledger.spent > 0


def test_requests_in_flight_never_overrun_the_cap() -> None:
    cap = 0.4
    ledger = Ledger(cap)

    async def many(client: AnthropicModel) -> list[Exchange | BaseException]:
        return await asyncio.gather(*(client.complete(PROMPT) for _ in range(200)), return_exceptions=True)

    with Loopback([reply("x" * 4_000)]) as server:
        results = asyncio.run(many(model(server, ledger=ledger)))
    paid = sum(result.usage.dollars for result in results if isinstance(result, Exchange))
    assert sum(isinstance(result, SpendLimitError) for result in results) == 200 - server.count
    assert 10 < server.count < 25  # about $0.02 each: money in flight is waited for, not taken for spent
    price = read_prices().models[MODEL]
    billed = sum(price.dollars(fresh=b.fresh, write_5m=b.written, read=b.read, output=b.output) for b in server.bills)
    assert billed == pytest.approx(paid) == pytest.approx(ledger.spent)
    assert billed <= cap


def test_one_client_serves_several_event_loops() -> None:
    with Loopback([reply(GOOD)]) as server:
        client = model(server)
        replies = [asyncio.run(client.complete(PROMPT)).reply for _ in range(3)]
    assert replies == [GOOD] * 3
