"""The run's one budget and its endpoints' paces, as the engine keeps them for all proposers."""

from __future__ import annotations

import asyncio
import os

import pytest

from evo.cluster.processes import forget_keys
from evo.cluster.setup import build_operators, check_models
from evo.cluster.spending import Spending, buckets_of, endpoint_of
from evo.config import ModelSection, RunConfig
from evo.errors import ConfigError, InputError
from evo.records import Spent
from evo.search.settings import Budget


class Committed:
    """What was recorded, in order."""

    def __init__(self) -> None:
        self.all: list[tuple[float, int]] = []

    def __call__(self, dollars: float, tokens: int) -> None:
        self.all.append((dollars, tokens))


def config(*models: ModelSection, **budget: float) -> RunConfig:
    return RunConfig(name="x", tasks=("softmax",), models=models, budget=Budget(**budget))  # type: ignore[arg-type]


def model(**given: object) -> ModelSection:
    return ModelSection.model_validate({"name": "m", **given})


def test_200_requests_of_four_proposers_never_overrun_and_are_recorded_before_they_are_granted() -> None:
    committed = Committed()
    spending = Spending(config(dollars=1.0, tokens=10_000), Spent(), committed)
    in_flight = [0.0]

    async def one(number: int) -> bool:
        name = str(number)
        if await spending.reserve(f"proposer-{number % 4}", 0, name, 0.05, 300):
            return False
        in_flight[0] += 0.05
        assert committed.all[-1][0] >= in_flight[0] - 1e-9
        assert in_flight[0] <= 1.0 + 1e-9
        await asyncio.sleep(0.001)
        in_flight[0] -= 0.02
        spending.settle(name, 0.03, 100)
        return True

    async def all_of_them() -> list[bool]:
        return await asyncio.gather(*(one(number) for number in range(200)))

    assert sum(asyncio.run(all_of_them())) == 32  # at $0.03 each, and $0.05 must be left for the last one
    assert committed.all[-1][0] <= 1.0
    assert max(tokens for _, tokens in committed.all) <= 10_000


def test_a_dead_proposers_money_is_gone_and_its_waiting_requests_take_none() -> None:
    async def scenario() -> None:
        committed = Committed()
        spending = Spending(config(dollars=1.0), Spent(dollars=0.1, held_dollars=0.1), committed)
        assert await spending.reserve("a", 0, "in flight", 0.4, 10) == ""
        assert await spending.reserve("b", 0, "other", 0.3, 10) == ""
        waiting = asyncio.create_task(spending.reserve("a", 0, "waiting", 0.2, 10))
        living = asyncio.create_task(spending.reserve("b", 0, "living", 0.2, 10))
        await asyncio.sleep(0)
        spending.lost("a")
        spending.settle("other", 0.0, 0)
        assert "gone" in await waiting
        assert await living == ""
        assert committed.all[-1] == (pytest.approx(0.1 + 0.1 + 0.4 + 0.2), 20)
        spending.settle("in flight", 0.0, 0)
        assert "$0.4000 is left" in await spending.reserve("b", 0, "too much", 0.5, 10)

    asyncio.run(scenario())


def test_a_call_of_a_dead_proposer_that_arrives_late_holds_nothing_and_its_successor_is_served() -> None:
    async def scenario() -> None:
        committed = Committed()
        spending = Spending(config(dollars=1.0), Spent(), committed)
        life = spending.life("a")
        spending.lost("a")
        assert "gone" in await spending.reserve("a", life, "late", 0.9, 10)
        assert committed.all == []
        # Were the late one held, nobody would settle it, and this one would wait for ever.
        assert await asyncio.wait_for(spending.reserve("a", spending.life("a"), "of the next life", 0.9, 10), 5) == ""

    asyncio.run(scenario())


def test_who_gives_up_waiting_takes_no_money() -> None:
    async def scenario() -> None:
        spending = Spending(config(dollars=1.0), Spent(), Committed())
        assert await spending.reserve("a", 0, "first", 0.9, 10) == ""
        waiting = asyncio.create_task(spending.reserve("a", 0, "second", 0.5, 10))
        await asyncio.sleep(0)
        spending.settle("second", 0.0, 0)
        spending.settle("first", 0.1, 10)
        assert "gone" in await waiting
        assert await spending.reserve("a", 0, "third", 0.9, 10) == ""

    asyncio.run(scenario())


def test_sections_that_differ_in_options_share_the_pace_of_their_endpoint() -> None:
    hot = model(label="hot", options={"temperature": 1.2}, requests_per_minute=60)
    cold = model(label="cold", options={"temperature": 0.2}, requests_per_minute=600, tokens_per_minute=6_000)
    other = model(name="other")
    assert endpoint_of(hot) == endpoint_of(cold) != endpoint_of(other)
    buckets = buckets_of(config(hot, cold, other))
    bucket = buckets[endpoint_of(hot)]
    assert [bucket.claim(str(number), 0) == 0 for number in range(8)] == [True] * 6 + [False] * 2  # a burst of six seconds
    assert all(buckets[endpoint_of(other)].claim(str(number), 10**6) == 0 for number in range(100))


def test_two_models_of_one_name_need_labels() -> None:
    same = (model(name="claude-opus-5-5"), model(name="claude-opus-5-5", options={"effort": "low"}))
    with pytest.raises(ConfigError, match=r"models\.1\.label.*another model has it"):
        check_models(config(*same))
    check_models(config(same[0], model(name="claude-opus-5-5", label="opus at low effort", options={"effort": "low"})))


def test_a_model_without_a_price_is_refused_under_a_dollar_cap_before_a_run_begins() -> None:
    own = model(provider="openai", name="qwen", base_url="http://127.0.0.1:1/v1")
    with pytest.raises(InputError, match=r"model qwen.*no price is known"):
        build_operators(config(own, dollars=1.0))
    free = own.model_copy(update={"options": {"free": True}})
    for ready in (config(own), config(own, tokens=10), config(free, dollars=1.0)):
        assert {"qwen"} in [set(by_model) for by_model in build_operators(ready).values()]


def test_whatever_may_hold_a_key_is_forgotten_where_no_model_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    held = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_CUSTOM_HEADERS", "openai_api_key", "MINE")
    monkeypatch.setattr(os, "environ", {**dict.fromkeys(held, "sk-x"), "HOME": "/"})
    forget_keys(config(model(provider="openai", options={"key_env": "MINE"})))
    assert os.environ == {"HOME": "/"}
