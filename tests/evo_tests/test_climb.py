"""What a climb asks of its tier: real tracer, compiler and tuner over a tier that keeps a record and measures nothing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import pytest

from evo.evaluation.base import Baseline, Effort, WorkItem
from evo.evaluation.draws import VERIFY_SEED
from evo.evaluation.examination import Examination
from evo.evaluation.ladder import LadderEvaluator
from evo.evaluation.settings import EvaluationSettings
from evo.evaluation.tier import Candidate, Checked, Sides, Timing
from evo.records import Configuration, Evaluation, Failure, Stage, Status, Variant
from evo.tasks.base import Case, Task
from evo.tasks.draws import Draw
from evo.tracing.workbench import Workbench
from tests.evo_tests import ladder_task as modules
from tests.evo_tests.noisy_tier import NoisyTier

TASK = modules.TASK
SETTINGS = EvaluationSettings(target="cuda:90", tune_trials=4, start_tune_trials=4, race=(8, 32))
LARGE, SMALL = (Configuration({"BLOCK": block, "num_warps": 4}) for block in (256, 64))


class Watched(NoisyTier):
    """Blocks of 64 are fast; whether they are also right is told to it. Notes what is asked of it."""

    def __init__(self, wrong_block: int = 0) -> None:
        super().__init__(0, pair=0.01, placement=0.005, drift=0.01, speedups={})
        self._wrong_block = wrong_block
        self.is_fresh = False
        self.checked: list[tuple[str, Configuration, tuple[Draw, ...], bool]] = []
        self.timed: list[tuple[int, bool]] = []

    def gate_cases(self, task: Task) -> tuple[Case, ...]:
        return task.small_cases + task.training_cases

    def check(self, task: Task, candidate: Candidate, draws: Sequence[Draw]) -> Checked | Failure:
        self.checked.append((candidate.case.name, candidate.configuration, tuple(draws), self.is_fresh))
        if candidate.configuration["BLOCK"] == self._wrong_block:
            return Failure(Status.WRONG_VALUES, Stage.GATE, "wrong", "wrong")
        return Checked(0.5, 64)

    def latency_us(self, task: Task, candidate: Candidate, worth_us: float = math.inf) -> float | Failure:
        return float(str(candidate.configuration["BLOCK"]))

    def compare_all(self, task: Task, sides: Sequence[Sides], *, pairs: int, placement: int) -> list[Timing] | Failure:
        self.timed.append((pairs, self.is_fresh))
        return super().compare_all(task, sides, pairs=pairs, placement=placement)

    def fresh(self) -> None:
        self.is_fresh = True

    def settle(self) -> None:
        self.is_fresh = False


class Suspicious(Examination):
    """Refuses everything, if it shall."""

    def __init__(self, refuses: bool) -> None:
        self._refuses = refuses
        self.cases: tuple[str, ...] = ()

    def examine(self, task: Task, candidates: Sequence[Candidate]) -> tuple[str, ...] | Failure:
        self.cases = tuple(item.case.name for item in candidates)
        return Failure(Status.REJECTED, Stage.VERIFY, "no", "no") if self._refuses else ("looked at",)

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def bench() -> Iterator[Workbench]:
    bench = Workbench("cuda:90", workers=1)
    bench.start()
    yield bench
    bench.close()


def climb(
    bench: Workbench, tier: Watched, *examinations: Examination, effort: Effort = Effort.SEARCH, task: Task = TASK
) -> Evaluation:
    baseline = Baseline(Variant(TASK.name, modules.GOOD + "\n# first\n"), {case.name: LARGE for case in TASK.training_cases})
    chosen = {case.name: SMALL for case in TASK.training_cases} if effort is Effort.VERIFY else {}
    evaluator = LadderEvaluator({TASK.name: task}, SETTINGS, tier, bench, examinations=examinations)
    item = WorkItem(1, Variant(TASK.name, modules.GOOD), baseline, effort, chosen=chosen)
    return evaluator.evaluate(item, lambda plan_hash, variant_id: None)


def test_what_tuning_finds_fastest_has_to_pass_the_gate_itself(bench: Workbench) -> None:
    right = climb(bench, Watched())
    assert {case.configuration["BLOCK"] for case in right.cases} == {64}
    wrong = climb(bench, Watched(wrong_block=64))
    assert wrong.status is Status.PASSED, wrong.message
    assert {case.configuration["BLOCK"] for case in wrong.cases} == {256}
    assert {trial.status for trial in wrong.trials if trial.configuration["BLOCK"] == 64} == {Status.PASSED, Status.WRONG_VALUES}


def test_a_task_narrows_what_is_tried_and_the_declared_value_stays(bench: Workbench) -> None:
    task = dataclasses.replace(TASK, knobs={"BLOCK": (64,), "num_warps": (4,)})
    found = climb(bench, Watched(), task=task)
    assert {trial.configuration for trial in found.trials} == {LARGE, SMALL}


def test_a_search_sees_no_held_out_case(bench: Workbench) -> None:
    tier = Watched()
    climb(bench, tier)
    assert {name for name, *_ in tier.checked} == {case.name for case in (*TASK.small_cases, *TASK.training_cases)}


def test_a_verification_is_of_all_cases_on_new_inputs_in_fresh_processes(bench: Workbench) -> None:
    tier, examination = Watched(), Suspicious(refuses=False)
    verdict = climb(bench, tier, examination, effort=Effort.VERIFY)
    assert (verdict.status, verdict.stage) == (Status.PASSED, Stage.VERIFY), verdict.message
    assert [name for name, *_ in tier.checked] == [case.name for case in TASK.cases] == list(examination.cases)
    assert {configuration for _, configuration, *_ in tier.checked} == {SMALL}
    assert all(draw.seed >= VERIFY_SEED for _, _, draws, _ in tier.checked for draw in draws)
    assert all(fresh for *_, fresh in (*tier.checked, *tier.timed))
    assert sum(pairs for pairs, _ in tier.timed) == SETTINGS.race[-1]
    assert verdict.checks == ("looked at",)
    assert not tier.is_fresh


def test_who_fails_an_examination_is_not_verified(bench: Workbench) -> None:
    verdict = climb(bench, Watched(), Suspicious(refuses=True), effort=Effort.VERIFY)
    assert (verdict.status, verdict.stage, verdict.message) == (Status.REJECTED, Stage.VERIFY, "no")
    assert verdict.fitness == 0


def test_the_fitness_is_what_a_variant_is_worth_at_least(bench: Workbench) -> None:
    verdict = climb(bench, Watched())
    assert 0 < verdict.fitness < verdict.speedup
    assert all(case.speedup_low < case.speedup < case.speedup_high for case in verdict.cases)
