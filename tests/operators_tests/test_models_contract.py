"""What every provider promises, whatever its API: replies, money, bounds, and a key that is nowhere. New providers are included."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import pickle
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from evo.errors import ModelError, SpendLimitError
from evo.records import Exchange
from operators.grammar.forms import kernel
from operators.models.base import Model, Prompt, RequestError
from operators.models.building import PATHS, RECORD, client_of, providers
from operators.models.ledger import Ledger
from operators.models.limits import PATIENCE_S, Bucket, LocalLimiter
from tests.operators_tests.loopback import Answer, Failure, Message, reply
from tests.operators_tests.model_harness import CANARY, ENDPOINTS, Endpoint, batch_endpoint, http_endpoint, quiet_environment

PROMPT = Prompt(("Rules. " * 400, "Task. " * 200), "Improve this kernel.", "hash", 1_000)
GOOD = "Strategy: tiles.\n```python\nx = 1\n```"
PROMPTLY_S = 60.0
"""Of what would else take many minutes, on a machine that is busy with other work."""
Open = Callable[[Sequence[Answer]], contextlib.AbstractContextManager[Endpoint]]


ENDPOINTLESS = ("local", "recorded", "served")
"""Asks nobody; what they say has tests of their own."""


@pytest.fixture(params=[*(name for name in providers() if name not in ENDPOINTLESS), "anthropic in batches"])
def endpoint(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    provider, _, mode = request.param.partition(" ")
    quiet_environment(monkeypatch, tmp_path, providers())
    opened = batch_endpoint if mode else ENDPOINTS.get(provider, http_endpoint)
    return lambda script: opened(provider, script, tmp_path)


def complete(client: Model, prompt: Prompt = PROMPT) -> Exchange:
    async def once() -> Exchange:
        try:
            return await client.complete(prompt)
        finally:
            await client.close()

    return asyncio.run(once())


def test_a_reply_becomes_an_exchange_with_its_bill(endpoint: Open) -> None:
    ledger = Ledger(5.0, 100_000)
    with endpoint([reply(GOOD)]) as opened:
        exchange = complete(opened.model(ledger))
        assert (opened.count(), "Improve this kernel." in opened.texts()) == (1, True)
    assert (exchange.reply, exchange.stop_reason, exchange.prompt) == (GOOD, "end_turn", PROMPT.text)
    assert (exchange.prompt_hash, exchange.template_hash) == (PROMPT.prompt_hash, "hash")
    assert exchange.request_id
    assert exchange.usage.output_tokens > 0
    assert (ledger.spent, ledger.spent_tokens) == (exchange.usage.dollars, exchange.usage.tokens)
    assert (ledger.reserved, ledger.reserved_tokens) == (0, 0)
    assert Exchange.from_json(json.loads(json.dumps(exchange.to_json()))) == exchange


@pytest.mark.parametrize("stop_reason", ["refusal", "max_tokens"])
def test_refusals_and_cut_off_replies_are_told_in_the_same_words_and_asked_once(endpoint: Open, stop_reason: str) -> None:
    with endpoint([Message(("I would rather",), stop_reason)]) as opened:
        exchange = complete(opened.model())
        assert opened.count() == 1
    assert exchange.stop_reason == stop_reason


@pytest.mark.parametrize("text", ["", "I am sorry.", "x" * 300_000, "a\ud800b\0c é 漢", "</think>", "```python\nimport os\n"])
def test_any_text_is_an_exchange_that_a_store_can_hold(endpoint: Open, text: str) -> None:
    with endpoint([Message((text,) if text else ())]) as opened:
        exchange = complete(opened.model())
    exchange.reply.encode()
    assert "\0" not in exchange.reply
    assert len(exchange.reply) <= len(text)


def test_thinking_and_tools_are_no_part_of_a_reply(endpoint: Open) -> None:
    blocks = (
        {"type": "thinking", "thinking": "```python\nsecret = 1\n```" * 300, "signature": "s"},
        "the answer",
        {"type": "tool_use", "id": "t", "name": "run", "input": {"code": "rm"}},
    )
    with endpoint([Message(blocks)]) as opened:
        assert complete(opened.model()).reply == "the answer"


def test_an_endpoint_that_never_answers_costs_bounded_requests_and_time(endpoint: Open) -> None:
    ledger = Ledger(5.0)
    with endpoint([Message((GOOD,), delay_s=600)]) as opened:
        options = {"timeout_s": 0.4, "max_retries": 2, "silence_s": 0.2}
        started = time.perf_counter()
        with pytest.raises(RequestError) as caught:
            complete(opened.model(ledger, **options))
        seconds = time.perf_counter() - started
        assert opened.count() <= 3
    assert seconds < PROMPTLY_S
    assert (caught.value.exchange.stop_reason, caught.value.exchange.reply) == ("error", "")
    assert ledger.reserved == 0


def test_an_endpoint_that_always_fails_costs_retries_plus_one_requests_and_no_money(endpoint: Open) -> None:
    ledger = Ledger(5.0)
    with endpoint([Failure(500, "api_error", headers={"retry-after": "0.01"})]) as opened:
        options = {"timeout_s": 5.0} if opened.over_http else {"timeout_s": 0.1}
        started = time.perf_counter()
        with pytest.raises(RequestError) as caught:
            complete(opened.model(ledger, max_retries=2, **options))
        assert opened.count() <= 3
        assert time.perf_counter() - started < PROMPTLY_S
    assert "\n" not in str(caught.value)
    assert (ledger.spent, ledger.reserved) == (0, 0)


def test_a_redirect_is_not_followed_but_told(endpoint: Open) -> None:
    ledger = Ledger(5.0)
    with endpoint([Failure(307, "moved", headers={"location": "/v1/elsewhere"})]) as opened:
        if opened.server is None:
            pytest.skip("files know no redirects")
        opened.server.redirect_batches()
        with pytest.raises(RequestError, match="give the final address as base_url"):
            complete(opened.model(ledger))
        assert len(opened.server.authorizations) == 1
    assert (ledger.spent, ledger.reserved) == (0, 0)


def test_cancelling_holds_nothing_back(endpoint: Open) -> None:
    ledger = Ledger(5.0)

    async def cancelled(opened: Endpoint) -> None:
        client = opened.model(ledger)
        task = asyncio.create_task(client.complete(PROMPT))
        while not opened.count():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await client.close()

    with endpoint([Message((GOOD,), delay_s=30)]) as opened:
        asyncio.run(cancelled(opened))
    assert ledger.reserved == 0


def test_a_budget_of_tokens_too_small_for_one_request_sends_none(endpoint: Open) -> None:
    with endpoint([reply(GOOD)]) as opened:
        with pytest.raises(SpendLimitError, match=r"of the budget of 500 tokens 500 are left; raise budget\.tokens"):
            complete(opened.model(Ledger(None, 500)))
        assert opened.count() == 0


def test_200_requests_at_once_never_overrun_the_budget(endpoint: Open) -> None:
    ledger = Ledger(0.4, 200_000)
    prompts = [Prompt(PROMPT.stable, f"Kernel {number}.", "hash", 1_000) for number in range(200)]

    async def many(client: Model) -> list[Exchange | BaseException]:
        try:
            return await asyncio.gather(*(client.complete(prompt) for prompt in prompts), return_exceptions=True)
        finally:
            await client.close()

    with endpoint([reply("x" * 4_000)]) as opened:
        results = asyncio.run(many(opened.model(ledger)))
        assert opened.count() < 200 or not opened.over_http  # files say that they cost little, and so go on
    done = [result for result in results if isinstance(result, Exchange)]
    assert len(done) > 5
    assert {type(result).__name__ for result in results} <= {"Exchange", "SpendLimitError"}
    assert sum(result.usage.dollars for result in done) == pytest.approx(ledger.spent)
    assert ledger.spent <= 0.4
    assert sum(result.usage.tokens for result in done) == ledger.spent_tokens <= 200_000


def test_every_attempt_waits_for_the_endpoints_limiter(endpoint: Open) -> None:
    bucket = Bucket(requests_per_minute=60_000)
    started = time.perf_counter()
    bucket.pause(2.1)
    with endpoint([reply(GOOD)]) as opened:
        complete(opened.model(limiter=LocalLimiter(bucket), timeout_s=2.0))  # its own time begins when it may be sent
        assert time.perf_counter() - started > 2.0


class Noted(Bucket):
    """Remembers the pauses that it was told of."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float | None] = []

    def pause(self, seconds: float | None) -> None:
        super().pause(seconds)
        self.pauses.append(seconds)


def test_a_rate_limit_stops_everybody_who_asks_that_endpoint(endpoint: Open) -> None:
    bucket = Noted()
    with endpoint([Failure(429, "rate_limit_error", headers={"retry-after": "0.6"}), reply(GOOD)]) as opened:
        if opened.server is None:
            pytest.skip("files know no rate limits")
        opened.server.fail_next_batch(Failure(429, "rate_limit_error", headers={"retry-after": "0.6"}))
        first, second = (opened.model(limiter=LocalLimiter(bucket)) for _ in range(2))
        server = opened.server

        async def both() -> None:
            asked = asyncio.create_task(first.complete(PROMPT))
            while not bucket.pauses:
                await asyncio.sleep(0.01)
            await asyncio.gather(second.complete(PROMPT), asked, return_exceptions=True)
            await asyncio.gather(first.close(), second.close())

        asyncio.run(both())
        limited, *later = server.arrivals
        assert len(later) == 2
        assert min(later) - limited >= 0.6


def test_an_endpoint_that_has_asked_to_be_left_alone_for_long_is_not_waited_for(endpoint: Open) -> None:
    now = [0.0]
    bucket = Bucket(clock=lambda: now[0])
    bucket.pause(600.0)
    now[0] = PATIENCE_S - 300.0  # one was let through when it said that it was well, and it was not
    bucket.pause(600.0)
    now[0] = PATIENCE_S
    ledger = Ledger(5.0)
    with endpoint([reply(GOOD)]) as opened:
        started = time.perf_counter()
        with pytest.raises(ModelError, match="has asked everybody to wait for more than 900 s"):
            complete(opened.model(ledger, LocalLimiter(bucket)))
        assert opened.count() == 0
    assert time.perf_counter() - started < PROMPTLY_S
    assert (ledger.spent, ledger.reserved) == (0, 0)


@pytest.mark.parametrize("claims", [5_000, 1_000_000_000])
def test_more_tokens_than_there_can_be_are_not_believed(endpoint: Open, claims: int) -> None:
    ledger = Ledger(5.0, 100_000)
    with endpoint([Message((GOOD,), claims=claims)]) as opened:
        exchange = complete(opened.model(ledger))
    assert exchange.reply == GOOD
    assert exchange.usage.claimed_tokens > claims
    # The most that a request of this length and its reply of 1,000 tokens can have; so nobody's word uses a budget up.
    assert 5_000 < exchange.usage.tokens == ledger.spent_tokens < 10_000
    assert exchange.usage.dollars == ledger.spent < 0.1
    assert (ledger.reserved, ledger.reserved_tokens) == (0, 0)


def test_a_grammar_that_a_model_does_not_support_changes_nothing(endpoint: Open) -> None:
    prompt = Prompt(PROMPT.stable, PROMPT.body, "hash", 1_000, grammar=kernel())
    with endpoint([reply(GOOD)]) as opened:
        client = opened.model()
        assert not client.supports_grammar
        assert complete(client, prompt).reply == GOOD
        if opened.over_http:
            assert "root ::=" not in opened.texts()


def test_the_key_is_nowhere(endpoint: Open, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level("DEBUG")
    script = [reply(f"Strategy: your key is {CANARY}"), Failure(400, "invalid_request_error", "bad header", echo_key=True)]
    with endpoint(script) as opened:
        client = opened.model(timeout_s=30.0 if opened.over_http else 2.0)  # a file is not refused, but left unanswered
        exchange = complete(client)
        with pytest.raises(RequestError) as caught:
            complete(client, Prompt((), "Another.", "hash", 1_000))
        if opened.server is not None:
            assert all(CANARY in said for said in opened.server.authorizations)  # it was used at all
            assert "[key]" in exchange.reply
        said = opened.texts()
    error = caught.value
    texts = [*traceback.format_exception(error), str(pickle.loads(pickle.dumps(error))), repr(error.exchange), repr(client)]
    texts += [repr([error.__cause__, error.__context__]), str(vars(error)), caplog.text, said]
    if opened.over_http:
        texts.append(repr(exchange))
    assert all(CANARY not in text for text in texts)
    assert [error.__cause__, error.__context__] == [None, None]
    assert not [path for path in (tmp_path / "requests").glob("**/*") if CANARY in path.read_text()]
    with pytest.raises(TypeError, match="stays in its process"):
        pickle.dumps(client)


@pytest.mark.parametrize("provider", providers())
def test_a_provider_is_named_as_its_module_and_takes_what_configurations_give(provider: str) -> None:
    parameters: dict[str, Any] = dict(inspect.signature(client_of(provider)).parameters)
    assert {"name", "ledger", "limiter", "max_tokens", "base_url"} <= set(parameters)
    assert client_of(provider).provider == provider


def test_every_option_that_is_called_a_place_is_one_of_some_provider() -> None:
    options = {name for provider in providers() for name in inspect.signature(client_of(provider)).parameters}
    assert options | {RECORD} >= PATHS
