"""The scripted model: answers in order or by prompt, and no endpoint."""

from __future__ import annotations

import asyncio

import pytest

from evo.errors import ModelError
from evo.records import Usage
from operators.models.base import Prompt
from operators.models.replaying import ReplayModel, Reply


def ask(model: ReplayModel, body: str) -> str:
    return asyncio.run(model.complete(Prompt(("rules",), body, "hash", 100))).reply


def test_a_list_is_answered_in_order_and_ends() -> None:
    model = ReplayModel(["one", ModelError("down"), Reply("two", "max_tokens", Usage(dollars=0.5))])
    assert ask(model, "a") == "one"
    with pytest.raises(ModelError, match="down"):
        ask(model, "b")
    exchange = asyncio.run(model.complete(Prompt((), "c", "hash", 100)))
    assert (exchange.reply, exchange.stop_reason, exchange.usage.dollars) == ("two", "max_tokens", 0.5)
    with pytest.raises(ModelError, match="has 3 answers"):
        ask(model, "d")
    assert [prompt.body for prompt in model.prompts] == ["a", "b", "c", "d"]


def test_a_function_answers_by_prompt_whatever_the_order() -> None:
    async def both(model: ReplayModel, bodies: list[str]) -> set[str]:
        exchanges = await asyncio.gather(*(model.complete(Prompt((), body, "hash", 100)) for body in bodies))
        return {repr(exchange) for exchange in exchanges}

    model = ReplayModel(lambda prompt: prompt.body.upper())
    assert asyncio.run(both(model, ["a", "b"])) == asyncio.run(both(model, ["b", "a"]))


@pytest.mark.parametrize(("stable", "body", "max_tokens"), [((), " ", 1), (("",), "x", 1), ((), "x", 0)])
def test_a_prompt_that_an_endpoint_would_refuse_cannot_be_made(stable: tuple[str, ...], body: str, max_tokens: int) -> None:
    with pytest.raises(ValueError, match=r"prompt|max_tokens"):
        Prompt(stable, body, "hash", max_tokens)


def test_blocks_cannot_be_confused_in_the_hash() -> None:
    assert Prompt(("a", "b"), "c", "h", 1).prompt_hash != Prompt(("ab",), "c", "h", 1).prompt_hash
