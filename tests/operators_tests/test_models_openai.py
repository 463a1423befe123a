"""The real openai client over real HTTP: what servers are sent, what their replies and errors become, and whose key goes where."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evo.errors import InputError, SpendLimitError
from evo.records import Exchange
from operators.grammar.forms import kernel
from operators.models.base import Prompt, RequestError
from operators.models.ledger import Ledger
from operators.models.openai import OpenAiModel
from operators.models.prices import read_prices
from tests.operators_tests.loopback import Answer, Failure, Loopback, Message, Raw, reply
from tests.operators_tests.model_harness import CANARY, quiet_environment

MODEL = "gpt-6.1-sol"
PROMPT = Prompt(("Rules. " * 400, "Task. " * 200), "Improve this kernel.", "hash", 1_000)
GOOD = "Strategy: tiles.\n```python\nx = 1\n```"
GRAMMAR = kernel()


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    quiet_environment(monkeypatch, tmp_path, ["openai"])
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-somebody")
    monkeypatch.setenv("SERVER_KEY", CANARY)


def model(loopback: Loopback, **options: Any) -> OpenAiModel:
    settings = {"ledger": Ledger(5.0), "timeout_s": 10.0, "silence_s": 5.0, "max_retries": 1, "key_env": "SERVER_KEY", **options}
    return OpenAiModel(settings.pop("name", MODEL), base_url=f"{loopback.url}/v1", **settings)


def complete(client: OpenAiModel, prompt: Prompt = PROMPT) -> Exchange:
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


def test_what_is_sent_and_what_it_costs() -> None:
    ledger = Ledger(5.0)
    with Loopback([reply(GOOD)]) as server:
        first = complete(model(server, ledger=ledger, temperature=0.7))
        second = complete(model(server, ledger=ledger))
    body = server.bodies[0]
    assert (body["model"], body["max_tokens"], body["stream"], body["temperature"]) == (MODEL, 1_000, True, 0.7)
    assert server.bodies[1]["temperature"] == 1
    assert [item["role"] for item in body["messages"]] == ["system", "user"]
    assert body["messages"][0] == server.bodies[1]["messages"][0], "the prefix that a server reuses"
    price = read_prices().models[MODEL]
    for exchange, bill in zip((first, second), server.bills, strict=True):
        expected = price.dollars(fresh=bill.fresh, write_5m=bill.written, read=bill.read, output=bill.output)
        assert exchange.usage.dollars == pytest.approx(expected)
    assert second.usage.cache_read_tokens == first.usage.cache_write_tokens > 900
    assert ledger.spent == pytest.approx(first.usage.dollars + second.usage.dollars)


def test_a_servers_own_key_is_sent_where_it_is_named_and_nobody_elses_ever() -> None:
    with Loopback([reply(GOOD)], keyless=True) as server:
        complete(model(server, key_env=None))
        complete(model(server))
    assert server.authorizations == ["", f"Bearer {CANARY}"]


def test_a_missing_key_is_told_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(InputError, match="set OPENAI_API_KEY in the environment"):
        OpenAiModel(MODEL, ledger=Ledger(1.0))
    with pytest.raises(InputError, match="set OTHER_KEY"):
        OpenAiModel(MODEL, ledger=Ledger(1.0), base_url="http://127.0.0.1:1", key_env="OTHER_KEY")


def test_a_server_that_wants_a_key_and_got_none_says_how_to_give_one() -> None:
    error, _, _, _ = fail([reply(GOOD)], key_env=None)
    assert "401 authentication_error: no credentials (no key was sent: name its variable in the option key_env)" in str(error)


def test_an_own_server_needs_no_price_where_it_says_that_it_is_free() -> None:
    with Loopback([reply(GOOD)], keyless=True) as server:
        with pytest.raises(InputError, match="no price is known"):
            model(server, name="qwen")
        ledger = Ledger(0.0, 10_000)
        exchange = complete(model(server, name="qwen", free=True, ledger=ledger))
    assert exchange.usage.dollars == ledger.spent == 0
    assert ledger.spent_tokens == exchange.usage.tokens > 1_000


@pytest.mark.parametrize(
    ("server_kind", "fields"),
    [
        ("vllm", {"structured_outputs": {"grammar": GRAMMAR.lark}}),
        ("sglang", {"ebnf": GRAMMAR.gbnf}),
        ("llama_cpp", {"grammar": GRAMMAR.gbnf}),
        ("fireworks", {"response_format": {"type": "grammar", "grammar": GRAMMAR.gbnf}}),
        ("openai", {"tool_choice": {"type": "custom", "custom": {"name": "reply"}}, "parallel_tool_calls": False}),
    ],
)
def test_a_grammar_goes_into_the_field_of_the_server(server_kind: Any, fields: dict[str, Any]) -> None:
    with Loopback([reply(GOOD)]) as server:
        client = model(server, server=server_kind)
        assert client.supports_grammar
        complete(client, Prompt((), "x", "hash", 10, grammar=GRAMMAR))
        complete(client, Prompt((), "x", "hash", 10))
    assert server.bodies[0].items() >= fields.items()
    assert not server.bodies[1].keys() & fields.keys()


@pytest.mark.parametrize(
    ("blocks", "reply_", "stop_reason"),
    [
        ((GOOD, {"type": "refusal", "refusal": "I cannot help with that."}), GOOD, "refusal"),
        (({"type": "thinking", "thinking": "Hm. " * 9_000}, GOOD), GOOD, "end_turn"),
        ((f"<think>\n```python\nbad = 1\n```\n</think>\n\n{GOOD}",), GOOD, "end_turn"),
        ((f"thinking with the tag in the prompt</think>{GOOD}",), GOOD, "end_turn"),
        (("<think>never done",), "", "end_turn"),
        ((f"{GOOD} uses <think> and </think> as words",), f"{GOOD} uses <think> and </think> as words", "end_turn"),
    ],
)
def test_reasoning_and_refusals_are_no_part_of_a_reply(blocks: tuple[Any, ...], reply_: str, stop_reason: str) -> None:
    with Loopback([Message(blocks)]) as server:
        exchange = complete(model(server))
    assert (exchange.reply, exchange.stop_reason) == (reply_, stop_reason)


def test_parts_of_content_are_read_as_some_servers_give_them() -> None:
    parts = [{"type": "thinking", "thinking": "secret"}, {"type": "text", "text": "the answer"}]
    chunk = {"id": "1", "choices": [{"index": 0, "delta": {"content": parts}, "finish_reason": "stop"}]}
    with Loopback([Raw(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode())]) as server:
        assert complete(model(server)).reply == "the answer"


def test_a_reply_without_its_usage_counts_in_full() -> None:
    ledger = Ledger(5.0, 1_000_000)
    with Loopback([Message((GOOD,), billed=False)]) as server:
        exchange = complete(model(server, ledger=ledger))
    assert exchange.reply == GOOD
    assert ledger.spent == exchange.usage.dollars > 1_000 * 10 / 1e6
    assert ledger.spent_tokens > 5_000


@pytest.mark.parametrize(
    "usage", [{}, {"prompt_tokens": 9}, {"completion_tokens": 9}, {"prompt_tokens": 0, "completion_tokens": 9}]
)
def test_a_reply_with_half_of_its_usage_counts_in_full(usage: dict[str, int]) -> None:
    ledger = Ledger(5.0, 1_000_000)
    with Loopback([chunk(choices=[{"index": 0, "delta": {"content": GOOD}, "finish_reason": "stop"}], usage=usage)]) as server:
        exchange = complete(model(server, ledger=ledger))
    assert exchange.reply == GOOD
    assert ledger.spent == exchange.usage.dollars > 1_000 * 10 / 1e6
    assert ledger.spent_tokens > 5_000


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503, 529])
def test_passing_trouble_is_retried_after_the_told_time_and_not_billed(status: int) -> None:
    ledger = Ledger(5.0)
    with Loopback([Failure(status, "server_error", headers={"retry-after-ms": "300"}), reply(GOOD)]) as server:
        started = time.perf_counter()
        exchange = complete(model(server, ledger=ledger))
    assert time.perf_counter() - started > 0.3
    assert server.count == 2
    assert ledger.spent == exchange.usage.dollars < 0.02


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [(429, "insufficient_quota", "insufficient_quota"), (402, "payment_required", ""), (403, "billing", "billing_not_active")],
)
def test_no_more_money_ends_the_search_at_once(status: int, kind: str, code: str) -> None:
    ledger = Ledger(5.0)
    with Loopback([Failure(status, kind, code=code)]) as server, pytest.raises(SpendLimitError, match=code or "billing_error"):
        complete(model(server, ledger=ledger, max_retries=3))
    assert server.count == 1
    assert (ledger.spent, ledger.reserved) == (0, 0)


def test_what_was_paid_before_the_money_ended_is_recorded_first() -> None:
    error, server, ledger, _ = fail([Message((GOOD,), cut="before"), Failure(402, "payment_required")])
    assert server.count == 2
    assert ledger.spent == error.exchange.usage.dollars > 0


@pytest.mark.parametrize("cut", ["end", "break"])
def test_a_broken_stream_is_no_reply_and_counts_in_full(cut: Any) -> None:
    error, server, ledger, _ = fail([Message(("def half" * 3_000,), cut=cut)])
    assert server.count == 1
    assert error.exchange.stop_reason == "error"
    assert ledger.spent == error.exchange.usage.dollars > 1_000 * 10 / 1e6


def chunk(**given: Any) -> Raw:
    return Raw(f"data: {json.dumps(given)}\n\ndata: [DONE]\n\n".encode())


@pytest.mark.parametrize(
    "answer",
    [
        Raw(b""),
        Raw(b"<html>502</html>", "text/html"),
        Raw(b"\xff\xfe\x00" * 50),
        Raw(b"data: {not json\n\n"),
        Raw(b'data: ["list"]\n\n'),
        Raw(b"no json", "application/json", 400),
        chunk(choices="none"),
        chunk(choices=[{"index": 0, "delta": None, "finish_reason": "stop"}]),
        chunk(choices=[{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}], usage={"prompt_tokens": "many"}),
        chunk(choices=[{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}], usage={"prompt_tokens": -5}),
        chunk(error={"message": "the engine died", "code": 500}),
        Message(("x" * 2_500_000,)),
        Message(({"type": "thinking", "thinking": "x" * 2_500_000},)),
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
    "told",
    [
        {"message": "m" * 285 + " " + CANARY},
        {"message": "bad", "type": ["a"], "code": {"x": 1}},
        {"message": "bad", "type": "x" * 500_000, "code": CANARY},
        {"message": "bad", "type": "x\ny"},
    ],
)
@pytest.mark.parametrize("status", [200, 400])
def test_an_endpoints_words_for_an_error_are_one_short_line_without_the_key_or_a_part_of_it(
    told: dict[str, Any], status: int
) -> None:
    answer = chunk(error=told) if status == 200 else Raw(json.dumps({"error": told}).encode(), "application/json", status)
    error, *_ = fail([answer], max_retries=0, key_env="SERVER_KEY")
    assert CANARY[:9] not in str(error)
    assert "\n" not in str(error)
    assert len(str(error)) < 700


def test_a_stop_reason_of_an_endpoints_own_can_be_stored_and_holds_no_key() -> None:
    ended = {"index": 0, "delta": {"content": "x"}, "finish_reason": f"\ud800\0{CANARY}" + "z" * 500_000}
    answer = chunk(choices=[ended], usage={"prompt_tokens": 50, "completion_tokens": 5})
    with Loopback([answer]) as server:
        said = complete(model(server, ledger=Ledger(5.0), key_env="SERVER_KEY")).stop_reason
    said.encode()
    assert "\0" not in said
    assert CANARY not in said
    assert len(said) < 700


@pytest.mark.parametrize("key", ["sk-…", "sk one", "sk\none"])
def test_what_can_be_no_key_is_refused_before_anything_is_sent_and_not_shown(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(InputError, match="OPENAI_API_KEY holds no key") as caught:
        OpenAiModel(MODEL, ledger=Ledger(1.0))
    assert key not in str(caught.value)


def test_a_spend_limit_in_mid_stream_ends_the_search_once_what_it_cost_is_recorded() -> None:
    error, _, ledger, _ = fail([chunk(error={"message": "no credit", "code": "insufficient_quota"})])
    assert ledger.spent == error.exchange.usage.dollars > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"temperature": 3.0}, "temperature"),
        ({"server": "tgi"}, "allowed: vllm, sglang"),
        ({"max_retries": -1}, "max_retries"),
        ({"silence_s": 0.0}, "silence_s"),
    ],
)
def test_a_malformed_argument_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        OpenAiModel(MODEL, ledger=Ledger(1.0), **options)
