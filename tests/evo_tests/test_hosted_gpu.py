"""Hosted candidates, recorded use and two-faced modules on a real GPU."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from evo.evaluation.base import Baseline, Effort, WorkItem
from evo.evaluation.building import build_evaluator
from evo.evaluation.hosted_host import CudaHost
from evo.evaluation.hosted_sides import HostedWork
from evo.evaluation.observed import RecordedUse
from evo.evaluation.settings import EvaluationSettings
from evo.evaluation.tier import Candidate, Checked, Timing
from evo.records import Configuration, Failure, LatencyKind, Stage, Status, TrustLevel, Variant
from evo.tasks.draws import Draw
from evo.tasks.loading import load_task, starting_sources
from evo.tracing.compiler import Compiler
from evo.tracing.plan import LaunchPlan
from evo.tracing.tracer import Tracer
from tests.evo_tests import hosted_modules as modules
from tests.evo_tests.hosted_task import GOOD, ON_DEVICE

pytestmark = pytest.mark.gpu
FOLDER = Path(__file__).parent / "exploits"
DEADLINE_S = 60.0
FILE = Path(__file__).parent / "hosted_task_on_device.py"
CASE = "512x8192"
SETTINGS = EvaluationSettings(tune_trials=2, start_tune_trials=2, race=(8, 16), run_deadline_s=DEADLINE_S)


@pytest.fixture(scope="module")
def host() -> Iterator[CudaHost]:
    host = CudaHost()
    host.describe(DEADLINE_S)
    yield host
    host.close()


def work(source: str, **configuration: int) -> HostedWork:
    return HostedWork(str(FILE), source, configuration)


def test_memory_is_lent_by_ipc_or_copied(host: CudaHost) -> None:
    described = host.describe(DEADLINE_S)
    print(f"hosted processes get device memory by {'CUDA IPC' if described['ipc'] else 'copies'}")
    for case in ("5x33", CASE):
        verdict = host.check(work(GOOD), case, (Draw(1), Draw(2)), DEADLINE_S)
        assert isinstance(verdict, Checked), verdict


@pytest.mark.parametrize(
    ("name", "statuses"),
    [
        ("WRONG", {Status.WRONG_VALUES}),
        ("REMEMBERS", {Status.WRONG_VALUES}),
        ("LIBRARY", {Status.REJECTED}),
        ("CHANGES_ITS_INPUT", {Status.GUARD_VIOLATION}),
        ("WRITES_BEHIND_ITS_INPUT", {Status.GUARD_VIOLATION, Status.RUNTIME_ERROR}),
        ("EXITS", {Status.RUNTIME_ERROR}),
        ("ANOTHER_SHAPE", {Status.WRONG_STRUCTURE}),
    ],
)
def test_a_fault_is_told_and_the_next_one_is_unharmed(host: CudaHost, name: str, statuses: set[Status]) -> None:
    verdict = host.check(work(getattr(modules, name)), "5x33", (Draw(1), Draw(2)), DEADLINE_S)
    assert isinstance(verdict, Failure), verdict
    assert verdict.status in statuses, verdict
    assert isinstance(host.check(work(GOOD), "5x33", (Draw(1),), DEADLINE_S), Checked)


ENDLESS = GOOD.replace("    tl.store(y_ptr", "    while tl.load(lengths_ptr) > -1:\n        total += 1\n    tl.store(y_ptr")
ILLEGAL = GOOD.replace("tl.load(x_ptr + row * columns + at,", "tl.load(x_ptr + (row.to(tl.int64) + 1) * 100000000000 + at,")


@pytest.mark.parametrize(("source", "status"), [(ENDLESS, Status.TIMEOUT), (ILLEGAL, Status.RUNTIME_ERROR)])
def test_a_device_fault_stays_in_its_process(host: CudaHost, source: str, status: Status) -> None:
    verdict = host.check(work(source), "5x33", (Draw(1),), 20.0)
    assert isinstance(verdict, Failure)
    assert verdict.status is status, verdict
    assert isinstance(host.check(work(GOOD), "5x33", (Draw(1),), DEADLINE_S), Checked)


def test_equal_kernels_are_equally_fast_and_a_slower_one_is_slower(host: CudaHost) -> None:
    equal = host.compare(work(GOOD), work(GOOD), CASE, 16, 0.0, DEADLINE_S)
    assert isinstance(equal, Timing), equal
    assert statistics.median(equal.log_ratios) == pytest.approx(0.0, abs=0.1)
    twice = GOOD.replace("    return y\n", _twice())
    slower = host.compare(work(twice), work(GOOD), CASE, 16, 0.0, DEADLINE_S)
    assert isinstance(slower, Timing), slower
    # Where memory is copied, the copies on both sides bring ratios nearer to 1.
    assert statistics.median(slower.log_ratios) < (-0.1 if host.describe(DEADLINE_S)["ipc"] else 0.1)


def _twice() -> str:
    launch = next(line for line in GOOD.splitlines(keepends=True) if line.startswith("    kernel["))
    return launch * 6 + "    return y\n"


@pytest.mark.parametrize("honest_calls", [3, 70])
def test_work_done_after_a_timed_call_is_noticed(host: CudaHost, honest_calls: int) -> None:
    verdict = host.compare(work(modules.LATER % honest_calls), work(GOOD), CASE, 8, 0.0, DEADLINE_S)
    assert isinstance(verdict, Failure), verdict
    assert verdict.stage is Stage.TIME


SIDE_STREAM = GOOD.replace(
    "    kernel[(rows,)]",
    "    torch.cuda.set_stream(torch.cuda.Stream())\n    torch.cuda._sleep(50_000_000)\n    kernel[(rows,)]",
).replace("    return y\n", "    torch.cuda.set_stream(torch.cuda.default_stream())\n    return y\n")


def test_a_side_stream_is_no_way_out(host: CudaHost) -> None:
    verdict = host.check(work(SIDE_STREAM), "5x33", (Draw(1), Draw(2)), DEADLINE_S)
    assert isinstance(verdict, Failure), verdict
    assert verdict.status in (Status.WRONG_VALUES, Status.NONDETERMINISTIC)


def test_the_evaluator_of_a_gpu_hosts_what_it_cannot_trace() -> None:
    task = load_task(str(FILE))
    evaluator = build_evaluator({task.name: task}, SETTINGS, "gpu")
    try:
        start = evaluator.evaluate(WorkItem(0, Variant(task.name, GOOD), None), lambda plan_hash, variant_id: None)
        assert (start.status, start.trust) == (Status.PASSED, TrustLevel.HOSTED), start.message
        assert start.latency_kind is LatencyKind.MEASURED
        baseline = Baseline(Variant(task.name, GOOD), {case.case: case.configuration for case in start.cases})
        chosen = {case.case: case.configuration for case in start.cases}
        item = WorkItem(1, Variant(task.name, GOOD + "\n# a child\n"), baseline, Effort.VERIFY, chosen=chosen)
        child = evaluator.evaluate(item, lambda plan_hash, variant_id: None)
        assert (child.status, child.stage, child.device) == (Status.PASSED, Stage.VERIFY, start.device), child.message
        assert child.speedup == pytest.approx(1.0, abs=0.15)
        assert child.gpu_s > 0
    finally:
        evaluator.close()


@pytest.fixture(scope="module")
def recorded_use() -> Iterator[RecordedUse]:
    examination = RecordedUse("cuda", deadline_s=DEADLINE_S)
    yield examination
    examination.close()


def candidate(reference: str, source: str, capability: str) -> Candidate:
    task = load_task(reference)
    tracer, compiler = Tracer(capability), Compiler(capability)
    try:
        case = task.training_cases[0]
        plan = tracer.trace(source, task, case, Configuration())
        assert isinstance(plan, LaunchPlan), plan
        binaries = compiler.compile_plan(plan)
        assert isinstance(binaries, tuple), binaries
        return Candidate(source, case, Configuration(), plan, binaries)
    finally:
        tracer.close()
        compiler.close()


@pytest.fixture(scope="module")
def capability() -> str:
    import torch

    return "cuda:{}{}".format(*torch.cuda.get_device_capability(0))


@pytest.mark.parametrize("name", ["softmax", "rms_norm", "swiglu", "gemm_bias_gelu", "attention", "quantize_rows"])
def test_starting_kernels_do_in_use_what_was_traced(recorded_use: RecordedUse, capability: str, name: str) -> None:
    task = load_task(name)
    for source in starting_sources(task):
        assert recorded_use.examine(task, [candidate(name, source, capability)]) == ("recorded use",)


@pytest.mark.parametrize("path", sorted((FOLDER / "two_faced").glob("two_faced_*.py")), ids=lambda path: path.stem)
def test_a_module_with_two_faces_is_refused(recorded_use: RecordedUse, capability: str, path: Path) -> None:
    reference = str(FOLDER / "tasks" / "sums.py")
    verdict = recorded_use.examine(load_task(reference), [candidate(reference, path.read_text(), capability)])
    assert isinstance(verdict, Failure), verdict
    assert (verdict.status, verdict.stage) == (Status.REJECTED, Stage.VERIFY)


def test_a_module_of_the_device_task_is_told_apart() -> None:
    assert load_task(str(FILE)).training_cases == ON_DEVICE.training_cases
