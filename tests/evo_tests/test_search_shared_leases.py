"""An evaluation that two do at a time, because the first is slow: it counts once, whoever comes first and whoever dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from evo.evaluation.simulated import SimulatedEvaluator
from evo.records import Evaluation, Stage, Status
from evo.search.engine import Engine
from evo.search.leases import Lease
from evo.search.settings import Budget, SearchSettings
from evo.search.toy import infos, toy_setup
from population_store.base import EvaluationEntry, PopulationStore, RunHeader
from population_store.opening import open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PopulationStore]:
    header = RunHeader("test", 1, "{}", "{}", "{}", "2026-01-01T00:00:00+00:00")
    with open_store(str(tmp_path / "run.sqlite"), header=header) as opened:
        yield opened


def engine_on(store: PopulationStore) -> Engine:
    return Engine(
        seed=7,
        settings=SearchSettings(islands=2, max_attempts=2),
        budget=Budget(evaluations=40),
        tasks=(toy_setup(),),
        operators=infos(),
        store=store,
        clock=lambda: 0.0,
    )


def shared(engine: Engine) -> tuple[Lease, Lease]:
    """The starting kernel's evaluation, twice."""
    (first,) = engine.ask_evaluations(2, "simulated")
    second = engine.lease_again(first.token)
    assert second is not None
    assert second.token != first.token
    assert second.item == first.item
    return first, second


def verdicts(store: PopulationStore) -> list[Evaluation]:
    return [entry.evaluation for _, entry in store.journal() if isinstance(entry, EvaluationEntry)]


@pytest.mark.parametrize("winner", [0, 1])
def test_the_first_verdict_counts_and_the_other_one_is_refused(store: PopulationStore, winner: int) -> None:
    engine = engine_on(store)
    both = shared(engine)
    verdict = SimulatedEvaluator(3).evaluate(both[0].item, engine.claim)
    assert engine.tell_evaluation(both[winner].token, verdict)
    assert engine.renew([lease.token for lease in both]) == (False, False)
    assert not engine.tell_evaluation(both[1 - winner].token, verdict)
    assert verdicts(store) == [verdict]
    assert engine.lease_again(both[0].token) is None


@pytest.mark.parametrize("lost", [0, 1])
def test_where_one_is_lost_the_other_keeps_the_work_and_its_plan(store: PopulationStore, lost: int) -> None:
    engine = engine_on(store)
    both = shared(engine)
    variant_id = both[0].item.variant.variant_id
    assert engine.claim("p", variant_id) is None
    assert engine.claim("p", variant_id) is None, "not a duplicate of itself"
    assert engine.give_back(both[lost].token)
    assert engine.ask_evaluations(1, "simulated") == (), "the other one is at it"
    assert engine.claim("p", variant_id) is None
    assert engine.tell_evaluation(both[1 - lost].token, SimulatedEvaluator(3).evaluate(both[0].item, engine.claim))
    assert len(verdicts(store)) == 1


def test_a_variant_that_kills_both_is_recorded_as_failed_once(store: PopulationStore) -> None:
    engine = engine_on(store)
    first, second = shared(engine)
    engine.give_back(first.token)
    third = engine.lease_again(second.token)
    assert third is not None
    engine.give_back(second.token)
    (verdict,) = verdicts(store)
    assert (verdict.status, verdict.stage, verdict.signature) == (Status.RUNTIME_ERROR, Stage.TRACE, "evaluator killed")
    assert engine.renew([third.token]) == (False,), "it is decided, so nobody need go on"


def test_the_device_of_a_run_is_that_of_its_first_verdict_also_when_it_is_resumed(store: PopulationStore) -> None:
    engine = engine_on(store)
    assert engine.device == ""
    (lease,) = engine.ask_evaluations(1, "simulated")
    engine.tell_evaluation(lease.token, SimulatedEvaluator(3).evaluate(lease.item, engine.claim))
    assert engine.device == engine_on(store).device == "simulated"
