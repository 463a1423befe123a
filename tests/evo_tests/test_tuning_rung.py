"""The tuning rung: what is compiled ahead, what is given up early, and that the same answers give the same questions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import pytest

from evo.evaluation.stages import StageClock
from evo.evaluation.tier import Candidate
from evo.evaluation.tuning_rung import History, Preparation, TuningRung, case_groups
from evo.evaluation.tuning_studies import PRUNED, answers_of, rebuilt
from evo.evaluation.turns import Sharing, Turns
from evo.knobs import Knobs
from evo.records import Configuration, Failure, Stage, Status, Trial
from evo.tasks.base import Case, Task, TensorSpec
from evo.tracing.workbench import Job, Outer, Prepared
from tests.evo_tests import ladder_task as modules
from tests.evo_tests.noisy_tier import PLAN, NoisyTier

TASK = modules.TASK
FIRST, SECOND = (case.name for case in TASK.training_cases)
DEFAULT = Configuration({"BLOCK": 64, "num_warps": 4})
KNOBS = Knobs(DEFAULT, {"BLOCK": (16, 32, 64, 128, 256, 512), "num_warps": (1, 2, 4, 8)})
Latency = Callable[[str, Configuration], float]

NOTHING_YET = History()


def bowl(case: str, configuration: Configuration) -> float:
    """The first case wants large blocks, the second one small ones."""
    block, warps = (float(str(configuration[key])) for key in ("BLOCK", "num_warps"))
    best = 256 if case == FIRST else 32
    return 10.0 * (1 + 0.2 * abs(math.log2(block / best)) + 0.1 * abs(math.log2(warps / 2)))


class Tabled(NoisyTier):
    """Latencies by a function; notes what is timed and up to what it is worth."""

    def __init__(self, latency: Latency) -> None:
        super().__init__(0, pair=0.01, placement=0.005, drift=0.01, speedups={})
        self._latency = latency
        self.events: list[str] = []
        self.timed: list[tuple[str, Configuration, float]] = []

    def latency_us(self, task: Task, candidate: Candidate, worth_us: float = math.inf) -> float | Failure:
        self.events.append(f"time {candidate.configuration}")
        self.timed.append((candidate.case.name, candidate.configuration, worth_us))
        return self._latency(candidate.case.name, candidate.configuration)


def rung(
    tier: Tabled,
    fits: Callable[[Configuration], bool] = lambda _: True,
    hints: Sequence[Configuration] = (),
    history: History = NOTHING_YET,
) -> TuningRung:
    """Everything compiles at once, but for what does not fit."""

    def start(jobs: Sequence[Job]) -> list[Outer]:
        tier.events.append(f"compile {jobs[0].configuration}")
        futures: list[Outer] = []
        for job in jobs:
            future: Outer = Future()
            failure = Failure(Status.OUT_OF_RESOURCES, Stage.COMPILE, "too large", "out_of_resources:x")
            future.set_result(Prepared(PLAN, ()) if fits(job.configuration) else failure)
            futures.append(future)
        return futures

    def finish(jobs: Sequence[Job], futures: Sequence[Outer]) -> list[Prepared | Failure]:
        return [future.result() for future in futures]

    preparation = Preparation(start, finish, lambda case, conf: Job(modules.GOOD, TASK, case, conf))
    return TuningRung(TASK, KNOBS, hints, 7, Turns(tier, Sharing(), StageClock()), preparation, history)


def test_each_case_keeps_its_own_best_of_shared_trials() -> None:
    tuned = rung(Tabled(bowl))
    tuned.run(14)
    assert len(tuned.tuners) == 1, "both cases are float32 matrices"
    best = {case.name: tuned.ranked(case)[0][1].configuration for case in TASK.training_cases}
    assert best == {FIRST: {"BLOCK": 256, "num_warps": 2}, SECOND: {"BLOCK": 32, "num_warps": 2}}


def test_the_next_configuration_is_compiled_before_the_present_one_is_timed() -> None:
    tier = Tabled(bowl)
    rung(tier).run(6)
    order = [event.split()[0] for event in tier.events]
    compiled = 0
    for place, event in enumerate(order):
        compiled += event == "compile"
        timed = len({str(event) for event in tier.events[: place + 1] if event.startswith("time")})
        assert compiled >= min(6, timed + 1)


def test_hints_are_all_compiled_at_once() -> None:
    tier = Tabled(bowl)
    hints = [Configuration({"BLOCK": block, "num_warps": 1}) for block in (16, 128, 256, 512)]
    rung(tier, hints=hints).run(8)
    assert [event.split()[0] for event in tier.events[:6]] == ["compile"] * 5 + ["time"]


def test_equal_answers_give_equal_trials_and_another_seed_of_noise_does_not_matter_to_the_first_ones() -> None:
    first, second = rung(Tabled(bowl)), rung(Tabled(bowl))
    first.run(10)
    second.run(10)
    assert first.trials == second.trials
    noisy = rung(Tabled(lambda case, conf: bowl(case, conf) * 1.001))
    noisy.run(2)
    asked = list(dict.fromkeys(trial.configuration for trial in first.trials))
    assert list(dict.fromkeys(trial.configuration for trial in noisy.trials)) == asked[:2]


def test_what_is_hopeless_on_one_case_is_not_timed_on_the_next() -> None:
    def cliff(case: str, configuration: Configuration) -> float:
        return bowl(case, configuration) * (100 if configuration["num_warps"] == 8 else 1)

    tier = Tabled(cliff)
    tuned = rung(tier, hints=[Configuration({"BLOCK": 64, "num_warps": 8})])
    tuned.run(2)
    slow = [(case, worth) for case, configuration, worth in tier.timed if configuration["num_warps"] == 8]
    assert [case for case, _ in slow] == [FIRST]
    assert slow[0][1] < 2 * bowl(FIRST, DEFAULT), "a first look is enough beyond it"
    (trial,) = (trial for trial in tuned.trials if trial.configuration["num_warps"] == 8)
    assert trial.message == PRUNED


def test_what_does_not_compile_costs_neither_the_device_nor_a_trial() -> None:
    tier = Tabled(bowl)
    tuned = rung(tier, fits=lambda configuration: int(str(configuration["BLOCK"])) <= 128)
    tuned.run(8)
    assert {int(str(configuration["BLOCK"])) for _, configuration, _ in tier.timed} <= {16, 32, 64, 128}
    passed = {trial.configuration for trial in tuned.trials if trial.status is Status.PASSED}
    assert len(passed) == 8
    assert {trial.status for trial in tuned.trials} <= {Status.PASSED, Status.OUT_OF_RESOURCES}


def test_a_deep_tune_goes_on_where_the_quick_one_ended() -> None:
    once, twice = rung(Tabled(bowl)), rung(Tabled(bowl))
    once.run(12)
    twice.run(8)
    quick = list(twice.trials)
    twice.run(12)
    assert twice.trials[: len(quick)] == quick
    assert len({trial.configuration for trial in twice.trials}) == len({trial.configuration for trial in once.trials}) == 12


def test_contenders_are_timed_once_more() -> None:
    tier = Tabled(lambda case, configuration: 10.0 + 0.001 * float(str(configuration["BLOCK"])))
    tuned = rung(tier)
    tuned.run(5)
    before = len(tier.timed)
    ranked = tuned.ranked(TASK.training_cases[0])
    assert len(tier.timed) == before + 3
    assert [pair[0] for pair in ranked] == sorted(pair[0] for pair in ranked)


def test_cases_of_other_dtypes_are_tuned_apart() -> None:
    half = Case("half", (TensorSpec((8, 8), "float16"),), 128, 64)
    assert case_groups([*TASK.training_cases, half]) == (TASK.training_cases, (half,))


def test_a_tuning_that_was_cut_off_times_nothing_twice_and_ends_where_it_would_have() -> None:
    def fits(configuration: Configuration) -> bool:
        return configuration["BLOCK"] != 512

    whole = rung(Tabled(bowl), fits)
    whole.run(12)
    heard: list[Trial] = []

    def cut_off(case: str, configuration: Configuration) -> float:
        if len(heard) >= 10:
            raise KeyboardInterrupt
        return bowl(case, configuration)

    with pytest.raises(KeyboardInterrupt):
        rung(Tabled(cut_off), fits, history=History((), heard.extend)).run(12)
    assert heard == whole.trials[: len(heard)]
    tier, later = Tabled(bowl), list[Trial]()
    resumed = rung(tier, fits, history=History(heard, later.extend))
    resumed.run(12)
    assert resumed.trials == whole.trials
    assert heard + later == whole.trials
    assert not {(trial.case, trial.configuration) for trial in heard} & {(case, item) for case, item, _ in tier.timed}
    compiled = sum(event.startswith("compile") for event in tier.events)
    assert compiled == len({trial.configuration for trial in later}), "what was known is not compiled either"
    for case in TASK.training_cases:
        assert resumed.ranked(case)[0][1].configuration == whole.ranked(case)[0][1].configuration


def test_a_study_is_rebuilt_from_its_trials() -> None:
    tuned = rung(Tabled(bowl), fits=lambda configuration: configuration["BLOCK"] != 512)
    tuned.run(10)
    again = rebuilt(KNOBS, tuned.trials, [FIRST, SECOND])
    theirs, ours = (tuner.study.get_trials() for tuner in (tuned.tuners[0], again))
    assert [(trial.params, trial.state) for trial in ours] == [(t.params, t.state) for t in theirs if t.state.name != "FAIL"]
    assert again.best_of(SECOND) == tuned.tuners[0].best_of(SECOND)
    assert again.ask() is None
    again.extend(12)
    asked = again.ask()
    assert asked is not None
    assert asked not in {trial.configuration for trial in tuned.trials}


def test_trials_of_another_variant_are_refused() -> None:
    tuned = rung(Tabled(bowl))
    tuned.run(3)
    other = Knobs(Configuration({"TILE": 1}), {"TILE": (1, 2)})
    with pytest.raises(ValueError, match="TILE"):
        rebuilt(other, tuned.trials, [FIRST, SECOND])
    narrower = Knobs(DEFAULT, {"BLOCK": (64,), "num_warps": (4,)})
    with pytest.raises(ValueError, match="none of"):
        rebuilt(narrower, tuned.trials, [FIRST, SECOND])
    assert len(answers_of(tuned.trials)) == 3
