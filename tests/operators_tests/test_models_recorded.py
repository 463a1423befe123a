"""Record once, replay exactly: replies, refusals, failures and bills, without an endpoint, and without a key in the cassette."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from evo.errors import ConfigError, InputError, SpendLimitError
from evo.records import Exchange
from operators.models.base import Model, Prompt, RequestError
from operators.models.building import build_model
from operators.models.ledger import Ledger
from tests.operators_tests.loopback import Answer, Failure, Loopback, Message, reply
from tests.operators_tests.model_harness import CANARY, quiet_environment

MODEL = "claude-opus-5-5"
SCRIPT: list[Answer] = [
    reply(f"first, and your key is {CANARY}"),
    Failure(400, "invalid_request_error", "bad header", echo_key=True),
    Message(("I would rather not",), "refusal"),
    reply("fourth \ud800 é"),
]
PROMPTS = [Prompt(("Rules.",), body, "hash", 500) for body in ("same", "other", "third", "same")]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    quiet_environment(monkeypatch, tmp_path, ["anthropic", "openai"])


def ask(model: Model, prompts: list[Prompt]) -> list[Exchange | str]:
    async def one_by_one() -> list[Exchange | str]:
        said: list[Exchange | str] = []
        for prompt in prompts:
            try:
                said.append(await model.complete(prompt))
            except RequestError as error:
                said += [str(error), error.exchange]
        await model.close()
        return said

    return asyncio.run(one_by_one())


def recorded(cassette: Path, **options: Any) -> Model:
    return build_model("recorded", MODEL, ledger=Ledger(0.0), options={"cassette": str(cassette)}, **options)


@pytest.fixture
def cassette(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "cassette.jsonl"


def test_what_was_recorded_is_replayed_exactly_and_costs_nothing(cassette: Path) -> None:
    with Loopback(SCRIPT) as server:
        options: dict[str, bool | int | float | str] = {"record": str(cassette)}
        model = build_model("anthropic", MODEL, ledger=Ledger(5.0), base_url=server.url, options=options)
        said = ask(model, PROMPTS)
    assert ask(recorded(cassette), PROMPTS) == said
    assert len(cassette.read_text().splitlines()) == 4
    assert CANARY not in cassette.read_text()
    # In another order equal requests still get their own answers; one more than was recorded gets none.
    replies = [item.reply for item in ask(recorded(cassette), [PROMPTS[3], PROMPTS[2], PROMPTS[0]]) if isinstance(item, Exchange)]
    assert replies == ["first, and your key is [key]", "I would rather not", "fourth ? é"]
    assert "no further answer" in str(ask(recorded(cassette), [PROMPTS[1], PROMPTS[1]])[2])


def test_a_cassette_goes_on_where_it_ended_and_keeps_models_apart(cassette: Path) -> None:
    for name, provider in ((MODEL, "anthropic"), ("gpt-6-luna", "openai")):
        with Loopback([reply(name)], keyless=True) as server:
            options: dict[str, bool | int | float | str] = {"record": str(cassette)}
            ask(build_model(provider, name, ledger=Ledger(5.0), base_url=server.url, options=options), PROMPTS[:1])
    (exchange,) = ask(recorded(cassette), PROMPTS[:1])
    assert isinstance(exchange, Exchange)
    assert exchange.reply == MODEL


def test_a_request_that_was_not_sent_is_not_recorded(cassette: Path) -> None:
    with Loopback([reply("x")]) as server:
        options: dict[str, bool | int | float | str] = {"record": str(cassette)}
        model = build_model("anthropic", MODEL, ledger=Ledger(None, 10), base_url=server.url, options=options)
        with pytest.raises(SpendLimitError):
            ask(model, PROMPTS[:1])
    assert cassette.read_text() == ""


@pytest.mark.parametrize(
    "line",
    ["no json", "[]", "{}", '{"key": 1, "exchange": {}, "error": null}', '{"key": "k", "exchange": {"a": 1}, "error": null}'],
)
def test_a_file_that_is_no_cassette_is_named_with_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(InputError, match=r"c\.jsonl:1; no line of a cassette"):
        recorded(path)
    with pytest.raises(InputError, match="cannot be read"):
        recorded(tmp_path / "none.jsonl")


def test_a_place_that_cannot_be_written_is_told_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"options\.record.*cannot be written"):
        build_model("anthropic", MODEL, ledger=Ledger(5.0), options={"record": str(tmp_path / "file" / "c.jsonl")})
    with pytest.raises(ConfigError, match="given 'record'"):
        build_model("anthropic", MODEL, ledger=Ledger(5.0), options={"record": True})
