"""The choice among models: most gain per dollar, no question twice to who refused it, and the same again after a resume."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from evo.evaluation.simulated import SimulatedEvaluator
from evo.records import Exchange, NoProposal, Proposal, Request, Usage
from evo.search.engine import Engine, ProposalWork
from evo.search.lost import LATE_S
from evo.search.model_mix import ModelBandit, ModelMix, Refusal
from evo.search.settings import Budget, SearchSettings
from evo.search.setup import OperatorInfo
from evo.search.toy import infos, toy_setup
from population_store.base import EvaluationEntry, OutcomeEntry, PopulationStore, Purpose
from population_store.opening import open_store
from tests.evo_tests.test_search_engine import Clock, history, new_store
from tests.evo_tests.test_search_engine import engine_on as toy_engine
from tests.evo_tests.test_search_engine import propose as toy_propose

MODELS = ("cheap", "dear")
SETTINGS = SearchSettings(islands=2, migration_interval=6, stall_limit=6, island_capacity=8, verify_elites=0)


def exchange(model: str, dollars: float, stop_reason: str = "end_turn") -> Exchange:
    return Exchange(model, "p", "t", "prompt", "reply", stop_reason, "r", 0.1, Usage(100, 10, dollars=dollars))


def request(model: str, number: int = 0) -> Request:
    return Request(number, "toy", 0, "toy/0/0", "ask", ("parent",), model)


def chosen(bandit: ModelBandit, count: int = 2_000) -> Counter[str]:
    rng = np.random.default_rng(1)
    return Counter(bandit.choose(MODELS, rng) for _ in range(count))


@pytest.mark.parametrize(
    ("gains", "dollars", "preferred"),
    [
        ({"cheap": 0.2, "dear": 0.2}, {"cheap": 0.01, "dear": 0.10}, "cheap"),
        ({"cheap": 0.02, "dear": 0.6}, {"cheap": 0.05, "dear": 0.10}, "dear"),
        ({"cheap": 0.5, "dear": 0.1}, {"cheap": 0.0, "dear": 0.0}, "cheap"),
        ({"cheap": 0.01, "dear": 0.7}, {"cheap": 0.0, "dear": 0.10}, "dear"),
    ],
)
def test_what_gains_most_per_dollar_is_asked_most(gains: dict[str, float], dollars: dict[str, float], preferred: str) -> None:
    bandit = ModelBandit(0.1, 50)
    rng = np.random.default_rng(0)
    for _ in range(150):
        for model in MODELS:
            bandit.pay(model, dollars[model])
            bandit.learn(model, float(rng.random() < gains[model]))
    counts = chosen(bandit)
    assert counts[preferred] > 0.7 * counts.total()
    assert min(counts.values()) >= 0.03 * counts.total(), "the other one is never given up entirely"


def test_an_unknown_model_is_tried() -> None:
    bandit = ModelBandit(0.0, 50)
    for _ in range(50):
        bandit.pay("dear", 0.1)
        bandit.learn("dear", 0.0)
    assert chosen(bandit)["cheap"] > 1_500


def test_a_model_whose_requests_reach_nobody_is_not_taken_for_cheap() -> None:
    mix = ModelMix(MODELS, ModelBandit(0.0, 50), failure_limit=5)
    down = NoProposal("no connection", failed=True, exchanges=(exchange("cheap", 0.0, "error"),))
    for number in range(4):
        mix.answered(request("cheap", number), down)
        mix.answered(request("dear", number), Proposal("x", "s", (exchange("dear", 0.1),)))
    assert mix.bandit.arms["cheap"].paid == 0 if "cheap" in mix.bandit.arms else True
    mix.answered(request("cheap", 9), down)
    assert mix.failing == {"cheap": (5, "no connection")}
    rng = np.random.default_rng(0)
    assert {mix.with_model(request(""), rng).model for _ in range(100)} == {"dear"}, "given up after five failures in a row"
    mix.new_session()
    assert {mix.with_model(request(""), rng).model for _ in range(100)} == {"cheap", "dear"}


def test_a_refused_question_is_passed_on_until_nobody_is_left() -> None:
    mix = ModelMix(MODELS, ModelBandit(0.5, 50), failure_limit=25)
    rng = np.random.default_rng(0)
    refused = NoProposal("refused", failed=True, exchanges=(exchange("cheap", 0.01, "refusal"),))
    assert mix.answered(request("cheap"), refused) is Refusal.PASSED_ON
    again = mix.redirected(7, lambda _: True)
    assert again == dataclasses.replace(request(""), number=7)
    assert mix.redirected(7, lambda _: False) is None, "its lineage was given up meanwhile"
    assert {mix.with_model(again, rng).model for _ in range(50)} == {"dear"}
    assert mix.with_model(dataclasses.replace(again, model="cheap"), rng).model == "dear", (
        "nor is a further sample of it asked for"
    )
    mix.asked(dataclasses.replace(again, model="dear"))
    assert mix.redirected(8, lambda _: True) is None
    assert mix.answered(request("dear"), refused) is Refusal.FINAL
    other = dataclasses.replace(request(""), parents=("other",))
    assert {mix.with_model(other, rng).model for _ in range(50)} == set(MODELS), "other questions are still asked of both"


def test_without_models_requests_stay_as_they_are() -> None:
    mix = ModelMix((), ModelBandit(0.1, 50), failure_limit=5)
    assert mix.with_model(request(""), np.random.default_rng(0)) == request("")
    assert mix.answered(request(""), NoProposal("x", failed=True)) is Refusal.NONE
    assert mix.is_open


# ---- in an engine


def asking(info: OperatorInfo) -> OperatorInfo:
    return dataclasses.replace(info, needs_model=info.name != "toy_knob")


def engine_on(store: PopulationStore, evaluations: int = 40, *, needing: bool = False, verify_elites: int = 0) -> Engine:
    return Engine(
        seed=7,
        settings=dataclasses.replace(SETTINGS, verify_elites=verify_elites),
        budget=Budget(evaluations=evaluations, dollars=100.0),
        tasks=(toy_setup(),),
        operators=tuple(asking(info) for info in infos() if info.name != "toy_knob" or not needing),
        store=store,
        clock=Clock(),
        models=MODELS,
    )


def answered(work: ProposalWork) -> Proposal | NoProposal:
    """The toy operator's proposal as if a model had made it; every third request to the cheap one is refused."""
    outcome, model = toy_propose(work), work.request.model
    if not model:
        return outcome
    if model == "cheap" and work.request.number % 3 == 0:
        return NoProposal("refused", failed=True, exchanges=(exchange(model, 0.001, "refusal"),))
    return dataclasses.replace(outcome, exchanges=(exchange(model, 0.01 if model == "cheap" else 0.1),))


def run(engine: Engine, results: int | None = None) -> None:
    evaluator = SimulatedEvaluator(3, failure_rate=0.9)
    for _ in range(results) if results is not None else itertools.count():
        if engine.finished is not None:
            return
        if leases := engine.ask_evaluations(1, "simulated"):
            engine.tell_evaluation(leases[0].token, evaluator.evaluate(leases[0].item, engine.claim))
        elif works := engine.ask_proposals(1):
            engine.tell_proposal(works[0].request.number, answered(works[0]))


def test_a_search_names_models_and_decides_the_same_after_every_cut(tmp_path: Path) -> None:
    with new_store(tmp_path / "whole.sqlite") as store:
        run(engine_on(store))
        whole = history(store)
    requests = [entry for entry in whole if isinstance(entry, Request)]
    assert {entry.model for entry in requests if entry.operator in ("start", "toy_knob")} == {""}
    assert {entry.model for entry in requests if entry.operator not in ("start", "toy_knob")} == set(MODELS)
    path = tmp_path / "cut.sqlite"
    new_store(path).close()
    for results in (5, 11, 23, 1, 17, None):
        with open_store(str(path), write=True) as store:
            run(engine_on(store), results)
    with open_store(str(path)) as store:
        assert history(store) == whole


def test_a_refused_question_is_the_next_one_of_another_model(tmp_path: Path) -> None:
    with new_store(tmp_path / "run.sqlite") as store:
        run(engine_on(store))
        entries = history(store)
    requests = {entry.number: entry for entry in entries if isinstance(entry, Request)}
    refused = [
        place
        for place, entry in enumerate(entries)
        if isinstance(entry, OutcomeEntry) and isinstance(entry.outcome, NoProposal) and "refused" in entry.outcome.reason
    ]
    assert refused
    for place in refused:
        entry = entries[place]
        assert isinstance(entry, OutcomeEntry)
        question = requests[entry.number]
        later = [item for item in entries[place + 1 :] if isinstance(item, Request)]
        if later:
            assert dataclasses.replace(question, number=later[0].number, model="dear") == later[0]


def unreached(model: str) -> NoProposal:
    return NoProposal("no connection", failed=True, exchanges=(exchange(model, 0.0, "error"),))


def test_an_outage_counts_against_no_operator_question_or_lineage(tmp_path: Path) -> None:
    with new_store(tmp_path / "run.sqlite") as store:
        engine = engine_on(store, evaluations=100)
        run(engine, 2)
        before = engine.progress()
        down = 0
        while down < 2 * SETTINGS.operator_failure_limit - 10:  # more than any limit of questions, operators and lineages
            for work in engine.ask_proposals(1):
                model = work.request.model
                down += bool(model)
                engine.tell_proposal(work.request.number, unreached(model) if model else NoProposal("does not apply"))
        after = engine.progress()
        assert down > 3 * SETTINGS.max_repairs
        assert {model.split()[0] for model in after.failing} == set(MODELS)
        assert all(item.uses == 0 for item in after.operators if item.operator != "toy_knob")
        assert [item.restarts for item in after.tasks[0].islands] == [item.restarts for item in before.tasks[0].islands]
        asked = [work.request.model for work in engine.ask_proposals(8)]
        assert set(asked) & set(MODELS), "the endpoint is back, and so is the search"


def test_a_run_whose_models_all_stay_away_ends_and_says_why(tmp_path: Path) -> None:
    with new_store(tmp_path / "run.sqlite") as store:
        engine = engine_on(store, needing=True)
        evaluator = SimulatedEvaluator(3)
        asked = 0
        while engine.finished is None:
            if leases := engine.ask_evaluations(1, "simulated"):
                engine.tell_evaluation(leases[0].token, evaluator.evaluate(leases[0].item, engine.claim))
            for work in engine.ask_proposals(1):
                asked += 1
                engine.tell_proposal(work.request.number, unreached(work.request.model))
        assert engine.finished == "no model answers any more (cheap: no connection; dear: no connection)"
        assert asked <= 2 * SETTINGS.operator_failure_limit


def test_where_the_money_ends_what_is_there_is_judged_and_what_was_not_asked_waits_for_more(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    with new_store(path) as store:
        engine = engine_on(store, verify_elites=2, needing=True)
        run(engine, 12)
        paid = engine.ask_proposals(3)
        unpaid = [work.request.number for work in engine.ask_proposals(30)]
        assert unpaid
        for number in unpaid:
            engine.cannot_pay(number, "of the budget nothing is left")
        for work in paid:  # in flight while the money ended
            engine.tell_proposal(work.request.number, answered(work))
        before = {item.operator: item.uses for item in engine.progress().operators}
        assert engine.ask_proposals(30) == ()
        run(engine)
        assert engine.finished == "of the budget nothing is left"
        assert engine.progress().tasks[0].pending_evaluations == 0, "what was paid for is judged"
        assert any(entry.purpose is Purpose.VERIFY for entry in history(store) if isinstance(entry, EvaluationEntry))
        after = {item.operator: item.uses for item in engine.progress().operators}
        assert sum(after.values()) - sum(before.values()) <= len(paid), "nobody is blamed for what was not asked"
    with open_store(str(path), write=True) as store:
        again = engine_on(store, verify_elites=2, needing=True)
        assert [work.request.number for work in again.ask_proposals(len(unpaid))] == unpaid


def test_replies_with_more_tokens_than_there_can_be_are_told(tmp_path: Path) -> None:
    with new_store(tmp_path / "run.sqlite") as store:
        engine = engine_on(store)
        run(engine, 2)
        asked = [work for _ in range(30) for work in engine.ask_proposals(1) if work.request.model == "dear"]
        work = asked[0]
        told = dataclasses.replace(exchange("dear", 0.1), usage=Usage(100, 10, dollars=0.1, claimed_tokens=10**9))
        engine.tell_proposal(work.request.number, dataclasses.replace(toy_propose(work), exchanges=(told,)))
        assert any(text.startswith("dear: 1 of its replies say that they have more tokens") for text in engine.progress().failing)


def test_a_server_that_ignores_grammars_is_named(tmp_path: Path) -> None:
    with new_store(tmp_path / "run.sqlite") as store:
        engine = engine_on(store)
        run(engine, 2)
        for _ in range(30):
            for work in engine.ask_proposals(1):
                said = "left" if work.request.model == "dear" else "held"
                exchanged = dataclasses.replace(exchange(work.request.model, 0.1), grammar=said)
                engine.tell_proposal(work.request.number, dataclasses.replace(toy_propose(work), exchanges=(exchanged,)))
        named = [text for text in engine.progress().failing if "ignores" in text]
        assert named == [
            "dear: replies leave the grammar that was sent with the request, so its server ignores it: is options.server what it is?"
        ]
    with open_store(str(tmp_path / "run.sqlite")) as store:
        outcomes = [entry.outcome for _, entry in store.journal() if isinstance(entry, OutcomeEntry) and entry.outcome.exchanges]
    assert {item.grammar for outcome in outcomes for item in outcome.exchanges} >= {"held", "left"}


def test_what_is_held_for_requests_in_flight_counts_as_spent_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    with new_store(path) as store:
        engine = engine_on(store)
        run(engine, 9)
        paid = engine.spent.dollars
        assert paid > 0
        engine.spend_up_to(paid + 2.0, 5_000)
        assert store.spent.held_dollars == pytest.approx(2.0), "in the store before the request is sent"
        engine.spend_up_to(paid + 0.5, 5_000)  # settled in part; the next record says so
    with open_store(str(path), write=True) as store:
        engine = engine_on(store)
        assert engine.spent.dollars == pytest.approx(paid)
        assert engine.spent.held_dollars == pytest.approx(2.0)


def test_a_reply_that_may_take_a_day_keeps_no_run_whose_time_is_up(tmp_path: Path) -> None:
    path, clock = tmp_path / "run.sqlite", Clock()
    budget = Budget(wall_s=100.0)
    with new_store(path) as store:
        engine = toy_engine(store, budget=budget, clock=clock)
        run(engine, 6)
        late = engine.ask_proposals(3)
        clock.now = 101.0
        run(engine, 8)
        assert engine.finished is None, "replies are waited for a little"
        clock.now += LATE_S + 1.0
        run(engine)
        assert engine.finished == "the budget of 100 wall seconds is used"
        assert any(entry.purpose is Purpose.VERIFY for entry in history(store) if isinstance(entry, EvaluationEntry))
        assert engine.tell_proposal(late[0].request.number, toy_propose(late[0])), "what comes all the same is kept"
    with open_store(str(path), write=True) as store:
        again = toy_engine(store, budget=Budget(wall_s=5_000.0), clock=clock)
        assert [work.request.number for work in again.ask_proposals(2)] == [work.request.number for work in late[1:]]
