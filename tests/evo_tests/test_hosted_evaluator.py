"""A variant that cannot be traced goes to the hosted evaluator, which judges it, tunes it a little and times it beside the baseline."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evo.evaluation.base import Baseline, Effort, WorkItem
from evo.evaluation.hosted import HostedEvaluator
from evo.evaluation.interpreter import InterpretedTier
from evo.evaluation.ladder import LadderEvaluator
from evo.evaluation.settings import EvaluationSettings
from evo.records import Configuration, LatencyKind, Stage, Status, TrustLevel, Variant
from evo.tracing.workbench import Workbench
from tests.evo_tests import hosted_modules as modules
from tests.evo_tests.hosted_task import GOOD, TASK

pytestmark = pytest.mark.slow

SETTINGS = EvaluationSettings(target="cuda:90", tune_trials=2, start_tune_trials=2, race=(4,), run_deadline_s=120)
START = Variant(TASK.name, GOOD)
BASELINE = Baseline(START, {case.name: Configuration({"BLOCK": 32, "num_warps": 1}) for case in TASK.training_cases})


@pytest.fixture(scope="module")
def ladder() -> Iterator[LadderEvaluator]:
    tasks = {TASK.name: TASK}
    hosted = HostedEvaluator(tasks, SETTINGS, "cpu")
    ladder = LadderEvaluator(tasks, SETTINGS, InterpretedTier("cuda:90"), Workbench("cuda:90", workers=1), hosted=hosted)
    yield ladder
    ladder.close()


def nobody(plan_hash: str, variant_id: str) -> None:
    """Every plan is new."""


def test_a_start_that_looks_at_values_passes_as_hosted(ladder: LadderEvaluator) -> None:
    verdict = ladder.evaluate(WorkItem(0, START, None), nobody)
    assert (verdict.status, verdict.trust, verdict.fitness) == (Status.PASSED, TrustLevel.HOSTED, 1.0), verdict.message
    assert verdict.latency_kind is LatencyKind.SIMULATED, "an interpreter's time is no measurement"
    assert len(verdict.trials) == 2
    assert [case.case for case in verdict.cases] == [case.name for case in TASK.training_cases]


@pytest.mark.slow
def test_a_child_is_timed_beside_its_baseline_and_verified_in_its_configuration(ladder: LadderEvaluator) -> None:
    child = Variant(TASK.name, GOOD + "\n# a child\n")
    chosen = {case.name: Configuration({"BLOCK": 64, "num_warps": 1}) for case in TASK.training_cases}
    verdict = ladder.evaluate(WorkItem(1, child, BASELINE, Effort.VERIFY, chosen=chosen), nobody)
    assert (verdict.status, verdict.stage, verdict.trust) == (Status.PASSED, Stage.VERIFY, TrustLevel.HOSTED), verdict.message
    assert [(case.pairs, case.configuration) for case in verdict.cases] == [(4, chosen["6x80"])]
    assert verdict.noise_floor > 0
    assert verdict.plan_hash


def test_a_wrong_one_fails_at_the_gate(ladder: LadderEvaluator) -> None:
    verdict = ladder.evaluate(WorkItem(2, Variant(TASK.name, modules.WRONG), BASELINE), nobody)
    assert (verdict.status, verdict.stage, verdict.fitness) == (Status.WRONG_VALUES, Stage.GATE, 0.0)
    assert "expected" in verdict.message


def test_the_same_text_is_judged_once(ladder: LadderEvaluator) -> None:
    verdict = ladder.evaluate(WorkItem(3, START, BASELINE), lambda plan_hash, variant_id: "another")
    assert (verdict.status, verdict.duplicate_of) == (Status.DUPLICATE, "another")
