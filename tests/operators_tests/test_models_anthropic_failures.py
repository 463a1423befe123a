"""The real anthropic client where its endpoint fails: what is tried again, what counts as spent, and what ends a search."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evo.errors import SpendLimitError
from operators.models.base import RequestError
from operators.models.ledger import Ledger
from tests.operators_tests.anthropic_calls import GOOD, complete, model
from tests.operators_tests.loopback import Answer, Failure, Loopback, Message, Raw, reply
from tests.operators_tests.model_harness import quiet_environment

PROMPTLY_S = 60.0
"""Of what would else take many minutes, on a machine that is busy with other work."""


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    quiet_environment(monkeypatch, tmp_path, ["anthropic"])


def fail(script: Sequence[Answer], **options: Any) -> tuple[RequestError, Loopback, Ledger, float]:
    ledger = Ledger(5.0)
    with Loopback(script) as server:
        started = time.perf_counter()
        with pytest.raises(RequestError) as caught:
            complete(model(server, ledger=ledger, **options))
        return caught.value, server, ledger, time.perf_counter() - started


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
    assert seconds < PROMPTLY_S
    assert str(status) in str(error)
    assert "requests sent: 3" in str(error)
    assert (error.exchange.stop_reason, error.exchange.reply, error.exchange.usage.dollars) == ("error", "", 0)
    assert (ledger.spent, ledger.reserved) == (0, 0)


def test_an_endless_retry_after_is_bounded_by_the_timeout() -> None:
    error, server, _, seconds = fail([Failure(429, "rate_limit_error", headers={"retry-after": "3600"})], timeout_s=1.0)
    assert (server.count, seconds < PROMPTLY_S) == (1, True)
    assert "within 1 s" in str(error)


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
    script: list[Answer] = [Message((GOOD,), cut="before"), Failure(402, "billing_error")]
    error, server, ledger, _ = fail(script)
    assert server.count == 2
    assert "no longer bills" in str(error)
    assert ledger.spent == error.exchange.usage.dollars > 0


def test_a_refused_key_is_one_clear_failure_without_retry() -> None:
    error, server, _, _ = fail([Failure(401, "authentication_error", "invalid key")], max_retries=3)
    assert server.count == 1
    assert "401 authentication_error: invalid key" in str(error)


def test_silence_is_bounded_and_counted_as_spent() -> None:
    error, server, ledger, seconds = fail([Message((GOOD,), delay_s=600)], silence_s=0.8)
    assert server.count == 2
    assert seconds < PROMPTLY_S
    assert "silent" in str(error)
    # Nobody knows whether a request that got no answer is billed: both attempts count in full.
    assert ledger.spent == error.exchange.usage.dollars > 2 * 1_000 * 20 / 1e6
    assert ledger.reserved == 0


def test_a_stalled_stream_is_bounded() -> None:
    error, server, ledger, seconds = fail([Message((GOOD,), stall_s=600)], timeout_s=1.2)
    assert (server.count, seconds < PROMPTLY_S) == (1, True)
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


def test_a_spend_limit_in_mid_stream_ends_the_search_once_what_it_cost_is_recorded() -> None:
    event = {"type": "error", "error": {"type": "billing_error", "message": "no credit"}}
    error, _, ledger, _ = fail([Raw(f"event: error\ndata: {json.dumps(event)}\n\n".encode())])
    assert ledger.spent == error.exchange.usage.dollars > 0


def test_nothing_listens() -> None:
    ledger = Ledger(5.0)
    with Loopback([reply(GOOD)]) as server:
        client = model(server, ledger=ledger)
    with pytest.raises(RequestError, match="connection failed") as caught:
        complete(client)
    assert caught.value.exchange.usage.dollars == ledger.spent == 0
