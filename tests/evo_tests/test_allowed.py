"""Status tells what a run may use now, not what it might when it began."""

from __future__ import annotations

from pathlib import Path

import pytest

from evo.evaluation.simulated import SimulatedEvaluator
from evo.records import Event, EventKind
from evo.reporting.status import StatusReader
from evo.search import snapshots
from evo.search.allowed import recorded
from evo.search.engine import Engine
from evo.search.settings import Budget, SearchSettings
from evo.search.toy import infos, toy_setup
from population_store.base import PopulationStore, RunHeader
from population_store.opening import open_store
from tests.evo_tests.test_search_engine import propose

CONFIG = '{"budget": {"evaluations": 4, "wall_s": 60.0, "gpu_s": null}}'
HEADER = RunHeader("allowed", 1, CONFIG, '{"toy": ""}', "{}", "2026-01-01T00:00:00+00:00")


def session(store: PopulationStore, evaluations: int) -> None:
    evaluator = SimulatedEvaluator(3, failure_rate=0.0)
    budget = Budget(evaluations=evaluations, wall_s=60)
    settings = SearchSettings(verify_elites=0)
    engine = Engine(
        seed=7, settings=settings, budget=budget, tasks=(toy_setup(),), operators=infos(), store=store, clock=lambda: 0.0
    )
    while engine.finished is None:
        engine.tell_proposals([(work.request.number, propose(work)) for work in engine.ask_proposals(1)])
        leases = engine.ask_evaluations(1)
        engine.tell_evaluations([(lease.token, evaluator.evaluate(lease.item, engine.claim)) for lease in leases])


@pytest.mark.parametrize("often", [False, True])
def test_the_budget_shown_is_that_of_the_newest_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, often: bool) -> None:
    if often:  # a snapshot after every entry
        monkeypatch.setattr(snapshots, "ENTRIES", 1)
        monkeypatch.setattr(snapshots, "PER_VARIANT", 0)
    path = str(tmp_path / "run.sqlite")
    with open_store(path, header=HEADER) as store:
        session(store, 4)
    for evaluations, told in ((4, 0), (9, 1), (9, 1), (12, 2)):
        with open_store(path, write=True) as store:
            session(store, evaluations)
        with open_store(path) as store:
            look = StatusReader(store).look()
            assert (look.spent.evaluations, look.budget) == (evaluations, {"evaluations": evaluations, "wall_s": 60.0})
            assert sum(event.kind is EventKind.BUDGET for event in store.events()) == told


@pytest.mark.parametrize("reason", ["", "[]", '{"evaluations": "many", "islands": 3, "tokens": true}', "[" * 100_000])
def test_a_forged_budget_limits_nothing(reason: str) -> None:
    assert recorded(Event(EventKind.BUDGET, "", 0, "", "", reason)) == {}
