"""The replayed tier on a real GPU: its verdicts, that a faulty kernel harms nobody after it, and that its clock agrees with others."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import pytest
import torch

from evo.evaluation.base import Baseline, WorkItem
from evo.evaluation.inputs import make_inputs
from evo.evaluation.ladder import LadderEvaluator
from evo.evaluation.settings import EvaluationSettings
from evo.records import Evaluation, LatencyKind, Status, TrustLevel, Variant
from evo.tracing.workbench import Workbench
from experiments.task_table import captured, entry_of, replay_us
from tests.evo_tests import ladder_task as modules

pytestmark = pytest.mark.gpu
SETTINGS = EvaluationSettings(tune_trials=3, start_tune_trials=3, race=(8, 16), run_deadline_s=10)


@pytest.fixture(scope="module")
def evaluator() -> Iterator[LadderEvaluator]:
    from evo.evaluation.replay import ReplayTier

    tier = ReplayTier(SETTINGS)
    evaluator = LadderEvaluator({modules.TASK.name: modules.TASK}, SETTINGS, tier, Workbench(tier.capability, workers=4))
    yield evaluator
    evaluator.close()


def evaluate(evaluator: LadderEvaluator, source: str, baseline: Baseline | None = None) -> Evaluation:
    return evaluator.evaluate(WorkItem(1, Variant(modules.TASK.name, source), baseline), lambda plan_hash, variant_id: None)


def test_a_good_kernel_is_measured(evaluator: LadderEvaluator) -> None:
    first = evaluate(evaluator, modules.GOOD)
    assert (first.status, first.trust, first.latency_kind) == (Status.PASSED, TrustLevel.REPLAYED, LatencyKind.MEASURED), (
        first.message
    )
    baseline = Baseline(Variant(modules.TASK.name, modules.GOOD), {case.case: case.configuration for case in first.cases})
    child = evaluate(evaluator, modules.GOOD + "\n# the same\n", baseline)
    assert child.status is Status.PASSED, child.message
    assert child.gpu_s > 0
    assert 0 < child.noise_floor < 0.1
    assert child.speedup == pytest.approx(1.0, abs=0.1)
    assert all(case.pairs == 16 for case in child.cases)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("WRONG", {Status.WRONG_VALUES}),
        ("UNWRITTEN", {Status.WRONG_VALUES}),
        ("WRITES_PAST_ITS_BUFFER", {Status.GUARD_VIOLATION}),
        ("CHANGES_ITS_INPUT", {Status.GUARD_VIOLATION}),
        ("ILLEGAL", {Status.RUNTIME_ERROR}),
        ("ENDLESS", {Status.TIMEOUT}),
    ],
)
def test_a_faulty_kernel_is_told_and_the_next_one_is_unharmed(
    evaluator: LadderEvaluator, name: str, allowed: set[Status]
) -> None:
    verdict = evaluate(evaluator, getattr(modules, name))
    assert verdict.status in allowed, verdict
    assert evaluate(evaluator, modules.GOOD).status is Status.PASSED


def test_device_latency_agrees_with_a_graph_of_the_usual_launch(evaluator: LadderEvaluator) -> None:
    verdict = evaluate(evaluator, modules.GOOD)
    case, result = modules.TASK.training_cases[0], verdict.cases[0]
    sets = [make_inputs(modules.TASK, case, seed, "cuda").arguments for seed in range(6)]
    graph, calls = captured(entry_of(modules.TASK, modules.GOOD, result.configuration), sets)
    scrub = torch.empty(1 << 27, dtype=torch.uint8, device="cuda")
    usual_us = statistics.median(replay_us(graph, calls, scrub) for _ in range(15))
    assert result.latency_us == pytest.approx(usual_us, rel=0.08)
