"""A model as a tier: replies held to a grammar by the server or not, turns of correction, and what of it is kept."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evo.records import Exchange, NoProposal, Proposal, Variant
from operators.base import Context, Parent
from operators.grammar.forms import kernel, skeleton_reply
from operators.llm.optimize import LlmOptimize
from operators.models.base import Form, Prompt
from operators.models.building import build_model
from operators.models.ledger import Ledger
from operators.models.openai import OpenAiModel
from operators.models.replaying import ReplayModel
from operators.models.tier import TierModel
from tests.operators_tests.grammar_broken import RIGHT, broken
from tests.operators_tests.loopback import Failure, Loopback, Message, reply

CONTEXT = Context("t", "Scales its argument.", "scale", "def scale(x, factor): ...", frozenset(), "cuda:90", "3.9.0")
OTHER = RIGHT.replace("total - 1.0", "total - 2.0")


def answer(module: str) -> str:
    return f"Strategy: another number\n```python\n{module.strip()}\n```\n"


def propose(model: TierModel, source: str = RIGHT) -> Proposal | NoProposal:
    parents = (Parent(Variant("t", source)),)

    async def proposed() -> Proposal | NoProposal:
        try:
            return await LlmOptimize(model=model).propose(parents, CONTEXT, np.random.default_rng(0))
        finally:
            await model.close()

    return asyncio.run(proposed())


def replayed(*texts: str, corrections: int = 1) -> tuple[TierModel, ReplayModel]:
    model = ReplayModel(texts)
    return TierModel(model, corrections=corrections), model


def served(server: Loopback, form: Form, kind: Any = "vllm") -> TierModel:
    client = OpenAiModel("qwen", ledger=Ledger(None), base_url=f"{server.url}/v1", server=kind, free=True, max_retries=0)
    return TierModel(client, form)


@pytest.mark.parametrize(("module", "said"), [(OTHER, "held"), (OTHER.replace("scale_kernel", "kernel"), "left")])
def test_an_exchange_says_whether_its_reply_keeps_to_the_grammar(module: str, said: str) -> None:
    with Loopback([reply(answer(module))], keyless=True) as server:
        outcome = propose(served(server, "skeleton"))
        body = server.bodies[0]
    skeleton = skeleton_reply(RIGHT)
    assert skeleton is not None
    assert body["structured_outputs"] == {"grammar": skeleton.lark}
    assert "Only the bodies of kernels may change" in body["messages"][-1]["content"]
    # A server that ignores what it does not know is found out, and its reply is read like any other.
    assert isinstance(outcome, Proposal)
    assert [exchange.grammar for exchange in outcome.exchanges] == [said]


def test_nothing_is_said_of_replies_without_a_grammar_or_without_an_end() -> None:
    with Loopback([reply(answer(OTHER)), Message((answer(OTHER),), stop_reason="max_tokens")], keyless=True) as server:
        free = propose(served(server, "none"))
        cut = propose(served(server, "module"))
    assert "structured_outputs" not in server.bodies[0]
    assert [exchange.grammar for exchange in (*free.exchanges, *cut.exchanges)] == ["", ""]


def test_a_long_module_is_asked_for_whole_where_a_grammar_holds_the_reply() -> None:
    long = RIGHT + "# a comment that makes it long\n" * 300
    with Loopback([reply(answer(OTHER))], keyless=True) as server:
        propose(served(server, "skeleton"), long)
        propose(served(server, "none"), long)
    asked = [body["messages"][-1]["content"] for body in server.bodies]
    assert "form **module**" in asked[0]
    assert "form **edits**" in asked[1]


def test_a_server_that_refuses_the_grammar_fails_with_its_words() -> None:
    with Loopback([Failure(400, "invalid_request_error", "grammar: expected ::=")], keyless=True) as server:
        outcome = propose(served(server, "module"))
    assert isinstance(outcome, NoProposal)
    assert "grammar: expected ::=" in outcome.reason


@pytest.mark.parametrize("blocks", [({"type": "custom_tool", "name": "reply", "input": answer(OTHER)},), (answer(OTHER),)])
def test_the_reply_of_openais_own_models_is_the_input_of_a_tool(blocks: tuple[Any, ...]) -> None:
    stop = "end_turn" if isinstance(blocks[0], str) else "tool_use"
    with Loopback([Message(blocks, stop_reason=stop)], keyless=True) as server:
        outcome = propose(served(server, "module", "openai"))
    (tool,) = server.bodies[0]["tools"]
    definition = tool["custom"]["format"]["grammar"]
    assert definition["syntax"] == "lark"
    assert definition["definition"].startswith("start:")
    assert isinstance(outcome, Proposal)
    assert outcome.source == OTHER


def test_a_tier_has_as_many_turns_as_it_is_given_and_each_is_kept() -> None:
    bad = answer(OTHER.replace("def scale(", "def scale((("))
    tier, model = replayed(bad, bad, bad, answer(OTHER), corrections=3)
    outcome = propose(tier)
    assert isinstance(outcome, Proposal)
    assert len(outcome.exchanges) == 4
    tier, model = replayed(bad, bad, bad, answer(OTHER), corrections=2)
    outcome = propose(tier)
    assert isinstance(outcome, NoProposal)
    assert len(outcome.exchanges) == len(model.prompts) == 3
    tier, model = replayed(bad, answer(OTHER), corrections=0)
    assert isinstance(propose(tier), NoProposal)
    assert len(model.prompts) == 1


def test_what_the_compiler_of_kernels_will_refuse_is_corrected_at_the_byte_where_it_stands() -> None:
    source, _ = broken("break")
    tier, model = replayed(answer(source), answer(OTHER))
    outcome = propose(tier)
    assert isinstance(outcome, Proposal)
    assert outcome.source == OTHER
    place = source.index("break") + len("break")
    assert f"byte {place} (line {source[:place].count(chr(10)) + 1}" in model.prompts[1].body


def test_a_module_that_the_grammar_alone_refuses_is_not_lost() -> None:
    source, _ = broken("break")
    unchanged = answer(RIGHT)
    for second in (answer(source), "I cannot do better.", answer(OTHER).replace("```python", "```text"), unchanged):
        outcome = propose(replayed(answer(source), second)[0])
        assert isinstance(outcome, Proposal), second
        assert outcome.source.strip() == source.strip()
        assert len(outcome.exchanges) == 2


def test_forms_need_a_server_that_takes_grammars() -> None:
    client = OpenAiModel("qwen", ledger=Ledger(None), base_url="http://127.0.0.1:9/v1", free=True)
    with pytest.raises(ValueError, match=r"options\.server"):
        TierModel(client, "module")
    with pytest.raises(ValueError, match="corrections"):
        TierModel(client, corrections=11)


def test_a_tier_records_what_its_model_records(tmp_path: Path) -> None:
    with Loopback([reply(answer(OTHER))], keyless=True) as server:
        options = {"record": str(tmp_path / "c.jsonl"), "server": "llama_cpp", "free": True}
        model = build_model("openai", "qwen", ledger=Ledger(None), base_url=f"{server.url}/v1", options=options)
        tier = TierModel(model, "module")
        exchange: Exchange = asyncio.run(tier.complete(Prompt((), "x", "hash", 100, kernel())))
    assert exchange.grammar == "left"
    assert tier.supports_grammar
    replay = build_model("recorded", "qwen", ledger=Ledger(None), options={"cassette": str(tmp_path / "c.jsonl")})
    assert asyncio.run(replay.complete(Prompt((), "x", "hash", 100, kernel()))).reply == exchange.reply
