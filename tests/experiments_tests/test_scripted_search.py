"""A whole search with a scripted model on real kernels: traced, compiled, interpreted, and the same every time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evo.cluster.setup import task_setups
from evo.config import RunConfig
from evo.evaluation.building import build_evaluator
from evo.evaluation.settings import EvaluationSettings
from evo.records import Event, NoProposal, Proposal, Status
from evo.registry import find_operators
from evo.search.engine import Engine
from evo.search.settings import Budget, SearchSettings
from evo.search.setup import OperatorInfo
from experiments.scripted_model import Faults, ScriptedModel, finished, rewrite_answer
from operators.llm.optimize import LlmOptimize
from population_store.base import EvaluationEntry, OutcomeEntry, RunHeader
from population_store.opening import open_store

HEADER = RunHeader("scripted", 1, "{}", "{}", "{}", "2026-01-01T00:00:00+00:00")
EFFORT = EvaluationSettings(target="cuda:90", training_cases=1, tune_trials=0, start_tune_trials=0)


def search(place: Path) -> list[tuple[str, str, float]]:
    """(strategy, status, fitness) of every child."""
    config = RunConfig.model_validate(
        {"name": "x", "tasks": ["softmax"], "target": "cuda:90", "evaluation": {"training_cases": 1}}
    )
    (setup,) = task_setups(config)
    rules = [cls() for cls in find_operators().values() if not cls.needs_model]
    operator = LlmOptimize(ScriptedModel(rewrite_answer(rules), faults=Faults(0.0, 0.0, 0.0), figures=False))
    evaluator = build_evaluator({"softmax": setup.task}, EFFORT, "cpu:cuda:90")
    found: dict[int, tuple[str, str, float]] = {}
    try:
        with open_store(str(place), header=HEADER) as store:
            engine = Engine(
                seed=2,
                settings=SearchSettings(islands=1, crossover_share=0.0, repair_share=0.0, verify_elites=0),
                budget=Budget(evaluations=3),
                tasks=[setup],
                operators=[OperatorInfo(operator.name, operator.kind, operator.arity, operator.needs_model)],
                store=store,
                clock=lambda: 0.0,
            )
            while engine.finished is None:
                for lease in engine.ask_evaluations(1, evaluator.device):
                    engine.tell_evaluation(lease.token, evaluator.evaluate(lease.item, engine.claim))
                for work in engine.ask_proposals(1):
                    outcome = finished(operator, work.parents, work.context, np.random.default_rng(work.seed))
                    assert isinstance(outcome, Proposal | NoProposal)
                    engine.tell_proposal(work.request.number, outcome)
            strategies: dict[int, str] = {}
            for _, entry in store.journal():
                if isinstance(entry, OutcomeEntry) and isinstance(entry.outcome, Proposal):
                    strategies[entry.number] = entry.outcome.strategy
                elif isinstance(entry, EvaluationEntry):
                    verdict = entry.evaluation
                    found[entry.number] = (strategies[entry.number], verdict.status.value, round(verdict.fitness, 6))
                else:
                    assert not isinstance(entry, Event), entry
    finally:
        evaluator.close()
    return [found[number] for number in sorted(found)]


@pytest.mark.slow
def test_a_scripted_search_of_real_kernels_repeats_itself(tmp_path: Path) -> None:
    first, second = search(tmp_path / "first.sqlite"), search(tmp_path / "second.sqlite")
    assert first == second
    assert len(first) == 3
    assert first[0][0] == "starting kernel"
    children = first[1:]
    assert all(strategy.startswith("optimize ") for strategy, _, _ in children)
    assert sum(status in (Status.PASSED, Status.DUPLICATE) for _, status, _ in children) >= 2, (
        "rewrites keep what a kernel computes"
    )
