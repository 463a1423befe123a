"""Variants climb the real ladder on the interpreted tier: real tracer, compiler, interpreter, judge and tuner."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from evo.errors import DeviceError
from evo.evaluation.base import Baseline, Effort, WorkItem
from evo.evaluation.interpreter import InterpretedTier
from evo.evaluation.ladder import LadderEvaluator
from evo.evaluation.settings import EvaluationSettings
from evo.records import Configuration, Evaluation, LatencyKind, Stage, Status, TrustLevel, Variant
from evo.tracing.workbench import Workbench
from tests.evo_tests import ladder_task as modules

SETTINGS = EvaluationSettings(target="cuda:90", tune_trials=3, start_tune_trials=3, training_cases=None)


@pytest.fixture(scope="module")
def evaluator() -> Iterator[LadderEvaluator]:
    bench = Workbench("cuda:90", workers=1, sass=True)
    bench.start()
    evaluator = LadderEvaluator({modules.TASK.name: modules.TASK}, SETTINGS, InterpretedTier("cuda:90", workbench=bench), bench)
    yield evaluator
    evaluator.close()


def nobody(plan_hash: str, variant_id: str) -> None:
    """Every plan is new."""


def evaluate(evaluator: LadderEvaluator, source: str, baseline: Baseline | None = None) -> Evaluation:
    return evaluator.evaluate(WorkItem(1, Variant(modules.TASK.name, source), baseline), nobody)


def test_a_starting_kernel_passes_and_is_its_own_baseline(evaluator: LadderEvaluator) -> None:
    verdict = evaluate(evaluator, modules.GOOD)
    assert verdict.status is Status.PASSED, verdict.message
    assert (verdict.trust, verdict.latency_kind) == (TrustLevel.INTERPRETED, LatencyKind.MODELLED)
    assert verdict.fitness == 1.0
    assert [case.case for case in verdict.cases] == ["4096x1000", "512x4096"]
    assert all(case.pairs == 0 and case.error_ratio <= 1 for case in verdict.cases)
    assert len({trial.configuration for trial in verdict.trials}) == 3
    assert verdict.cases[0].peak_bytes == 4096 * 4


def test_a_child_is_held_against_the_baseline(evaluator: LadderEvaluator) -> None:
    baseline = Baseline(
        Variant(modules.TASK.name, modules.GOOD),
        {case.name: Configuration({"BLOCK": 64, "num_warps": 1}) for case in modules.TASK.training_cases},
    )
    verdict = evaluate(evaluator, modules.GOOD + "\n# a child\n", baseline)
    assert verdict.status is Status.PASSED, verdict.message
    assert verdict.cases[0].baseline_us / verdict.cases[0].latency_us == pytest.approx(verdict.cases[0].speedup)
    assert verdict.fitness >= 1.0, "tuning starts at the declared configuration and may only improve on it"


@pytest.mark.parametrize(
    ("source", "status", "stage", "text"),
    [
        (modules.WRONG, Status.WRONG_VALUES, Stage.GATE, "expected"),
        (modules.UNWRITTEN, Status.WRONG_VALUES, Stage.GATE, "nan"),
        (modules.WRITES_PAST_ITS_BUFFER, Status.RUNTIME_ERROR, Stage.GATE, "outside"),
        (modules.CHANGES_ITS_INPUT, Status.GUARD_VIOLATION, Stage.GATE, "argument 0"),
        (modules.GOOD.replace("def entry", "def other"), Status.REJECTED, Stage.LINT, "entry"),
        (modules.GOOD.replace("return y", "return y + y"), Status.REJECTED, Stage.TRACE, "aten.add"),
    ],
)
def test_the_first_failing_rung_ends_it(evaluator: LadderEvaluator, source: str, status: Status, stage: Stage, text: str) -> None:
    verdict = evaluate(evaluator, source)
    assert (verdict.status, verdict.stage) == (status, stage), verdict
    assert text in verdict.message
    assert verdict.fitness == 0
    assert not verdict.cases


def test_equal_plans_are_measured_once(evaluator: LadderEvaluator) -> None:
    taken: dict[str, str] = {}

    def claim(plan_hash: str, variant_id: str) -> str | None:
        owner = taken.setdefault(plan_hash, variant_id)
        return None if owner == variant_id else owner

    first = Variant(modules.TASK.name, modules.GOOD)
    again = Variant(modules.TASK.name, modules.GOOD.replace("total", "accumulated"))
    wider = Variant(modules.TASK.name, modules.GOOD.replace("[64, 256]", "[64, 128, 256]"))
    assert evaluator.evaluate(WorkItem(1, first, None), claim).status is Status.PASSED
    verdict = evaluator.evaluate(WorkItem(2, again, None), claim)
    assert (verdict.status, verdict.duplicate_of) == (Status.DUPLICATE, first.variant_id)
    assert evaluator.evaluate(WorkItem(3, wider, None), claim).status is Status.PASSED, "tuning could make other plans of it"


def test_tuning_finds_a_configuration_where_the_declared_one_does_not_fit(evaluator: LadderEvaluator) -> None:
    verdict = evaluate(evaluator, modules.NEEDS_TUNING)
    assert verdict.status is Status.PASSED, verdict.message
    assert {trial.status for trial in verdict.trials} == {Status.PASSED, Status.OUT_OF_RESOURCES}
    assert all(case.configuration["BLOCK"] != 65536 for case in verdict.cases)


def test_verification_uses_the_given_configurations(evaluator: LadderEvaluator) -> None:
    variant = Variant(modules.TASK.name, modules.GOOD)
    chosen = {case.name: Configuration({"BLOCK": 64, "num_warps": 1}) for case in modules.TASK.training_cases}
    item = WorkItem(1, variant, Baseline(variant, chosen), Effort.VERIFY, chosen=chosen)
    verdict = evaluator.evaluate(item, nobody)
    assert (verdict.status, verdict.stage) == (Status.PASSED, Stage.VERIFY), verdict.message
    assert [case.configuration for case in verdict.cases] == list(chosen.values())
    assert not verdict.trials


def test_a_failure_is_not_remembered(evaluator: LadderEvaluator) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # the sandboxed module looks into it
        source = f"import os\nif not os.path.exists({folder + '/calm'!r}):\n    raise RuntimeError('busy')\n" + modules.GOOD
        assert evaluate(evaluator, source).status is Status.TRACE_ERROR
        Path(folder, "calm").touch()
        assert evaluate(evaluator, source).status is Status.PASSED


def test_a_baseline_that_cannot_be_prepared_is_not_the_variant_s_fault(evaluator: LadderEvaluator) -> None:
    broken = Variant(modules.TASK.name, "raise RuntimeError('gone')\n" + modules.GOOD)
    chosen = {case.name: Configuration({"BLOCK": 64, "num_warps": 1}) for case in modules.TASK.training_cases}
    with pytest.raises(DeviceError, match="baseline"):
        evaluate(evaluator, modules.GOOD + "\n# another child\n", Baseline(broken, chosen))
