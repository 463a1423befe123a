"""The real SDK over real HTTP against a scripted server: replies, failures, money, and the key that must not leak."""

from __future__ import annotations

import asyncio
import json
import pickle
import time
import traceback
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
from tests.operators_tests.loopback import Answer, Failure, Loopback, Message, Raw, reply

CANARY = "sk-ant-canary-0123456789abcdef"
MODEL = "claude-opus-5-5"
PROMPT = Prompt(("Rules. " * 400, "Task. " * 200), "Improve this kernel.", "hash", 1_000)
GOOD = "Strategy: tiles.\n```python\nx = 1\n```"


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A key, none of this machine's own settings, and no certificate authorities: reading them takes 0.1 s per client."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    for name in ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "ANTHROPIC_PROFILE", "ANTHROPIC_CUSTOM_HEADERS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", CANARY)
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def model(server: Loopback, **options: Any) -> AnthropicModel:
    settings = {"ledger": Ledger(5.0), "timeout_s": 10.0, "silence_s": 5.0, "max_retries": 1, **options}
    return AnthropicModel(MODEL, base_url=server.url, **settings)


def complete(client: AnthropicModel, prompt: Prompt = PROMPT) -> Exchange:
    async def once() -> Exchange:
        try:
            return await client.complete(prompt)
        finally:
            await client.close()

    return asyncio.run(once())


def fail(script: Sequence[Answer], **options: Any) -> tuple[RequestError, Loopback, Ledger, float]:
    ledger = Ledger(5.0)
    with Loopback(script) as server:
        started = time.perf_counter()
        with pytest.raises(RequestError) as caught:
            complete(model(server, ledger=ledger, **options))
        return caught.value, server, ledger, time.perf_counter() - started


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


def test_only_text_blocks_are_a_reply() -> None:
    blocks = (
        {"type": "thinking", "thinking": "```python\nsecret = 1\n```" * 300, "signature": "s"},
        "the answer",
        {"type": "tool_use", "id": "t", "name": "run", "input": {"code": "rm"}},
    )
    with Loopback([Message(blocks)]) as server:
        assert complete(model(server)).reply == "the answer"


@pytest.mark.parametrize("stop_reason", ["refusal", "max_tokens", "model_context_window_exceeded", "pause_turn"])
def test_a_stop_reason_is_handed_on(stop_reason: str) -> None:
    with Loopback([Message(("I would rather",), stop_reason)]) as server:
        exchange = complete(model(server))
    assert exchange.stop_reason == stop_reason
    assert server.count == 1
    assert exchange.usage.dollars > 0


def test_an_empty_message_is_an_empty_reply() -> None:
    with Loopback([Message(())]) as server:
        assert complete(model(server)).reply == ""


@pytest.mark.parametrize("status", [429, 500, 529])
def test_passing_trouble_is_retried_and_not_billed(status: int) -> None:
    trouble = Failure(status, "overloaded_error", headers={"retry-after": "0.1"})
    ledger = Ledger(5.0)
    with Loopback([trouble, reply(GOOD)]) as server:
        exchange = complete(model(server, ledger=ledger))
    assert (exchange.reply, server.count) == (GOOD, 2)
    assert ledger.spent == exchange.usage.dollars < 0.02


def test_retry_after_is_honoured() -> None:
    with Loopback([Failure(429, "rate_limit_error", headers={"retry-after": "0.7"}), reply(GOOD)]) as server:
        started = time.perf_counter()
        complete(model(server))
    assert time.perf_counter() - started > 0.7


@pytest.mark.parametrize("status", [429, 500, 529])
def test_lasting_trouble_costs_retries_plus_one_requests_and_nothing_else(status: int) -> None:
    error, server, ledger, seconds = fail([Failure(status, "api_error", headers={"retry-after": "0.05"})], max_retries=2)
    assert server.count == 3
    assert seconds < 5
    assert str(status) in str(error)
    assert "requests sent: 3" in str(error)
    assert (error.exchange.stop_reason, error.exchange.reply, error.exchange.usage.dollars) == ("error", "", 0)
    assert (ledger.spent, ledger.reserved) == (0, 0)


def test_an_endless_retry_after_is_bounded_by_the_timeout() -> None:
    error, server, _, seconds = fail([Failure(429, "rate_limit_error", headers={"retry-after": "3600"})], timeout_s=0.5)
    assert (server.count, seconds < 3) == (1, True)
    assert "within 0.5 s" in str(error)


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (429, "rate_limit_error", "enforced_spend_limit_reached"),
        (429, "rate_limit_error", "contract_spend_limit_reached"),
        (402, "billing_error", ""),
        (403, "billing_error", ""),
        (400, "invalid_request_error", "organization_on_hold"),
    ],
)
def test_no_more_money_ends_the_search_at_once(status: int, kind: str, code: str) -> None:
    ledger = Ledger(5.0)
    with Loopback([Failure(status, kind, code=code)]) as server, pytest.raises(SpendLimitError, match=code or "billing_error"):
        complete(model(server, ledger=ledger, max_retries=3))
    assert server.count == 1
    assert (ledger.spent, ledger.reserved) == (0, 0)


def test_what_was_paid_before_the_money_ended_is_recorded_first() -> None:
    script: list[Answer] = [Message((GOOD,), delay_s=30), Failure(402, "billing_error")]
    error, server, ledger, _ = fail(script, silence_s=0.8)
    assert server.count == 2
    assert "no longer bills" in str(error)
    assert ledger.spent == error.exchange.usage.dollars > 0


def test_a_refused_key_is_one_clear_failure_without_retry() -> None:
    error, server, _, _ = fail([Failure(401, "authentication_error", "invalid key")], max_retries=3)
    assert server.count == 1
    assert "401 authentication_error: invalid key" in str(error)


def test_silence_is_bounded_and_counted_as_spent() -> None:
    error, server, ledger, seconds = fail([Message((GOOD,), delay_s=30)], silence_s=0.8)
    assert server.count == 2
    assert seconds < 5
    assert "silent" in str(error)
    # Nobody knows whether a request that got no answer is billed: both attempts count in full.
    assert ledger.spent == error.exchange.usage.dollars > 2 * 1_000 * 20 / 1e6
    assert ledger.reserved == 0


def test_a_stalled_stream_is_bounded() -> None:
    error, server, ledger, seconds = fail([Message((GOOD,), stall_s=30)], timeout_s=0.6)
    assert (server.count, seconds < 3) == (1, True)
    assert error.exchange.usage.input_tokens > 0
    assert ledger.spent == error.exchange.usage.dollars > 0


@pytest.mark.parametrize("cut", ["end", "break"])
def test_a_broken_stream_is_no_reply_and_counts_in_full(cut: Any) -> None:
    error, server, ledger, _ = fail([Message(("def half" * 3_000,), cut=cut)])
    assert server.count == 1
    assert error.exchange.stop_reason == "error"
    assert ledger.spent == error.exchange.usage.dollars > 1_000 * 20 / 1e6


@pytest.mark.parametrize(
    "answer",
    [
        Raw(b""),
        Raw(b"<html>502</html>", "text/html"),
        Raw(b"\xff\xfe\x00" * 50),
        Raw(b"event: message_start\ndata: {not json\n\n"),
        Raw(b'event: message_start\ndata: ["list"]\n\n'),
        Raw(b'event: content_block_delta\ndata: {"type": "content_block_delta", "index": 7}\n\n'),
        Raw(b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}\n\n'),
        Raw(b"no json", "application/json", 400),
        Message(("x" * 2_500_000,)),
    ],
)
def test_what_is_no_message_stream_is_a_failed_request(answer: Answer) -> None:
    error, server, ledger, _ = fail([answer])
    assert server.count <= 2
    assert error.exchange.stop_reason == "error"
    assert ledger.reserved == 0
    assert "\n" not in str(error)
    json.dumps(error.exchange.to_json())


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


def test_a_spend_limit_in_mid_stream_ends_the_search() -> None:
    event = {"type": "error", "error": {"type": "billing_error", "message": "no credit"}}
    with Loopback([Raw(f"event: error\ndata: {json.dumps(event)}\n\n".encode())]) as server, pytest.raises(SpendLimitError):
        complete(model(server))


def test_text_that_no_store_can_hold_is_replaced() -> None:
    with Loopback([reply("a\ud800b\0c")]) as server:
        exchange = complete(model(server))
    assert exchange.reply == "a?b\ufffdc"
    exchange.reply.encode()


def test_nothing_listens() -> None:
    ledger = Ledger(5.0)
    with Loopback([reply(GOOD)]) as server:
        client = model(server, ledger=ledger)
    with pytest.raises(RequestError, match="connection failed") as caught:
        complete(client)
    assert caught.value.exchange.usage.dollars == ledger.spent == 0


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


def test_a_budget_too_small_for_one_request_sends_none() -> None:
    with Loopback([reply(GOOD)]) as server, pytest.raises(SpendLimitError, match=r"\$0\.0100 is left"):
        complete(model(server, ledger=Ledger(0.01)))
    assert server.count == 0


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


def test_the_key_appears_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    echo = Failure(400, "invalid_request_error", "bad header", echo_key=True)
    with Loopback([reply(f"Strategy: your key is {CANARY}"), echo]) as server:
        client = model(server)
        exchange = complete(client)
        with pytest.raises(RequestError) as caught:
            complete(client)
    assert CANARY in server.authorizations[0]  # it was used at all
    chain = "".join(traceback.format_exception(caught.value))
    linked = [caught.value.__cause__, caught.value.__context__]
    pickled = pickle.loads(pickle.dumps(caught.value))
    texts = [
        chain,
        repr(linked),
        str(pickled),
        repr(exchange),
        repr(caught.value.exchange),
        repr(client),
        str(vars(caught.value)),
        caplog.text,
    ]
    assert all(CANARY not in text for text in texts)
    assert linked == [None, None]
    assert "[key]" in exchange.reply
    assert CANARY not in json.dumps(server.bodies)
    with pytest.raises(TypeError, match="stays in its process"):
        pickle.dumps(client)


def test_one_client_serves_several_event_loops() -> None:
    with Loopback([reply(GOOD)]) as server:
        client = model(server)
        replies = [asyncio.run(client.complete(PROMPT)).reply for _ in range(3)]
    assert replies == [GOOD] * 3
