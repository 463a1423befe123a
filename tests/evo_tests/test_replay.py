"""The replayed tier on a real GPU: its verdicts, that a faulty kernel harms nobody after it, and that its clock agrees with others."""

from __future__ import annotations

import dataclasses
import os
import signal
import statistics
import time
from collections.abc import Iterator

import pytest
import torch

from evo.evaluation.base import Baseline, Effort, WorkItem
from evo.evaluation.graphs import Stopwatch
from evo.evaluation.inputs import make_inputs
from evo.evaluation.ladder import LadderEvaluator
from evo.evaluation.replay import ReplayTier
from evo.evaluation.settings import EvaluationSettings
from evo.evaluation.tier import Candidate
from evo.records import Configuration, Evaluation, LatencyKind, Status, TrustLevel, Variant
from evo.tasks.base import Case, Task
from evo.tracing.workbench import Job, Prepared, Workbench
from experiments.side_by_side.measuring import captured, entry_of
from tests.evo_tests import inplace_task
from tests.evo_tests import ladder_task as modules

pytestmark = pytest.mark.gpu
SETTINGS = EvaluationSettings(tune_trials=3, start_tune_trials=3, race=(8, 16), run_deadline_s=10)
TASKS = {task.name: task for task in (modules.TASK, inplace_task.TASK)}


@pytest.fixture(scope="module")
def tier() -> Iterator[ReplayTier]:
    tier = ReplayTier(SETTINGS)
    yield tier
    tier.close()


@pytest.fixture(scope="module")
def bench(tier: ReplayTier) -> Iterator[Workbench]:
    bench = Workbench(tier.capability, workers=4)
    yield bench
    bench.close()


@pytest.fixture(scope="module")
def evaluator(tier: ReplayTier, bench: Workbench) -> LadderEvaluator:
    return LadderEvaluator(TASKS, SETTINGS, tier, bench)


def evaluate(
    evaluator: LadderEvaluator, source: str, baseline: Baseline | None = None, task: Task = modules.TASK, **more: object
) -> Evaluation:
    item = dataclasses.replace(WorkItem(1, Variant(task.name, source), baseline), **more)
    return evaluator.evaluate(item, lambda plan_hash, variant_id: None)


def baseline_of(evaluator: LadderEvaluator, source: str, task: Task = modules.TASK) -> Baseline:
    first = evaluate(evaluator, source, task=task)
    assert first.status is Status.PASSED, first.message
    return Baseline(Variant(task.name, source), {case.case: case.configuration for case in first.cases})


def candidate_of(bench: Workbench, source: str, case: Case, configuration: Configuration, task: Task = modules.TASK) -> Candidate:
    (prepared,) = bench.prepare([Job(source, task, case, configuration)])
    assert isinstance(prepared, Prepared), prepared
    return Candidate(source, case, configuration, prepared.plan, prepared.binaries)


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
        ("READS_PAST_ITS_BUFFER", {Status.GUARD_VIOLATION}),
        ("USES_STALE_SCRATCH", {Status.WRONG_VALUES}),
    ],
)
def test_a_faulty_kernel_is_told_and_the_next_one_is_unharmed(
    evaluator: LadderEvaluator, name: str, allowed: set[Status]
) -> None:
    verdict = evaluate(evaluator, getattr(modules, name))
    assert verdict.status in allowed, verdict
    assert evaluate(evaluator, modules.GOOD).status is Status.PASSED


@pytest.mark.parametrize(("number", "sets"), [(0, 8), (1, 16)])
def test_device_latency_agrees_with_a_graph_of_the_usual_launch(evaluator: LadderEvaluator, number: int, sets: int) -> None:
    verdict = evaluate(evaluator, modules.GOOD)
    case, result = modules.TASK.training_cases[number], verdict.cases[number]
    inputs = [make_inputs(modules.TASK, case, seed, "cuda").arguments for seed in range(sets)]
    stopwatch = Stopwatch(torch.device("cuda:0"), torch.cuda.get_device_properties(0).L2_cache_size)
    graph, calls = captured(entry_of(modules.TASK, modules.GOOD, result.configuration), inputs, stopwatch)
    usual_us = statistics.median(stopwatch.replay_us(graph) / calls for _ in range(15))
    assert result.latency_us == pytest.approx(usual_us, rel=0.08)


def test_a_kernel_of_a_few_microseconds_is_timed_as_the_profiler_times_it(tier: ReplayTier, bench: Workbench) -> None:
    case = modules.TASK.small_cases[0]
    configuration = Configuration({"BLOCK": 64, "num_warps": 1})
    found_us = tier.latency_us(modules.TASK, candidate_of(bench, modules.GOOD, case, configuration))
    assert isinstance(found_us, float)
    call, inputs = entry_of(modules.TASK, modules.GOOD, configuration), make_inputs(modules.TASK, case, 0, "cuda").arguments
    call(*inputs)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        for _ in range(50):
            call(*inputs)
        torch.cuda.synchronize()
    durations = [event.device_time for event in profile.events() if "kernel" in event.name and event.device_time > 0]
    # Beyond the kernel's own time, a graph has a gap of about a microsecond between nodes.
    assert statistics.median(durations) - 0.5 < found_us < statistics.median(durations) + 2.5


def test_calls_that_update_in_place_are_timed_on_pristine_arguments(evaluator: LadderEvaluator) -> None:
    task = inplace_task.TASK
    verdict = evaluate(evaluator, inplace_task.TWICE, baseline_of(evaluator, inplace_task.GOOD, task), task)
    assert verdict.status is Status.PASSED, verdict.message
    assert verdict.cases[0].pairs == 16
    assert 0.5 < verdict.speedup < 2


def test_measured_memory_is_what_a_variant_allocates(evaluator: LadderEvaluator) -> None:
    scratch = modules.GOOD.replace(
        "    kernel[(rows,)]", "    z = torch.empty((1000, 1000), device=x.device)\n    z.fill_(1.0)\n    kernel[(rows,)]"
    )
    assert evaluate(evaluator, modules.GOOD).cases[0].peak_bytes == 4096 * 4
    assert evaluate(evaluator, scratch).cases[0].peak_bytes == 4096 * 4 + 4_000_000


def test_verification_uses_other_workers_and_leaves_the_warm_ones_warm(evaluator: LadderEvaluator, tier: ReplayTier) -> None:
    baseline = baseline_of(evaluator, modules.GOOD)
    before = tier.counters()["kernels loaded"]
    verdict = evaluate(evaluator, modules.GOOD + "\n# elite\n", baseline, effort=Effort.VERIFY, chosen=baseline.configurations)
    assert verdict.status is Status.PASSED, verdict.message
    assert {case.pairs for case in verdict.cases} == {16}
    assert tier.counters()["kernels loaded"] == before


def test_a_hot_spare_takes_over_at_once(tier: ReplayTier) -> None:
    assert tier.healthy()
    time.sleep(3)  # the spare makes its context
    process = tier._main._replay._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    assert not tier.healthy(), "the dead process is noticed"
    started = time.monotonic()
    assert tier.healthy()
    assert time.monotonic() - started < 0.5


def test_equal_work_is_loaded_and_shipped_once(evaluator: LadderEvaluator, tier: ReplayTier) -> None:
    baseline = baseline_of(evaluator, modules.GOOD)
    evaluate(evaluator, modules.GOOD + "\n# once\n", baseline)
    before = tier.counters()
    assert evaluate(evaluator, modules.GOOD + "\n# twice\n", baseline).status is Status.PASSED
    after = tier.counters()
    assert after["kernels loaded"] == before["kernels loaded"]
    assert after["graphs captured"] == before["graphs captured"]


def test_kernels_that_nothing_uses_leave_the_device(bench: Workbench) -> None:
    from evo.evaluation.runner import load_plan

    case = modules.TASK.training_cases[0]
    prepared = candidate_of(bench, modules.GOOD, case, Configuration({"BLOCK": 64, "num_warps": 1}))
    torch.cuda.init()
    used = []
    for keep in (False, True):
        before = torch.cuda.mem_get_info()[0]
        kept = []
        for _ in range(1500):
            loaded = load_plan(prepared.plan, prepared.binaries, torch.device("cuda:0"))
            if keep:
                kept.append(loaded)
        used.append(before - torch.cuda.mem_get_info()[0])
    assert used[0] < max(used[1] / 2, 8 << 20), f"{used[0]} bytes after unloading, {used[1]} with all kept"


def test_seconds_are_told_by_stage(evaluator: LadderEvaluator) -> None:
    before = evaluator.stage_seconds()
    verdict = evaluate(evaluator, modules.GOOD.replace("* 2)", "* 2.0)"), baseline_of(evaluator, modules.GOOD))
    spent = {name: seconds - before.get(name, 0.0) for name, seconds in evaluator.stage_seconds().items()}
    assert all(spent[name] > 0 for name in ("prepare", "check", "judge", "time", "device"))
    assert 0 < verdict.gpu_s <= spent["device"] + 1e-3
