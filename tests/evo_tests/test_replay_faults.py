"""The replayed tier over stand-ins for its GPU processes: faults cost what they must, harm nobody else and name what is broken."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from evo.errors import BadDeviceError, DeviceError, TaskError
from evo.evaluation.crew import Processes
from evo.evaluation.replay import ReplayTier
from evo.evaluation.settings import EvaluationSettings
from evo.evaluation.tier import Candidate, Checked
from evo.evaluation.turns import Sharing, Turns
from evo.evaluation.worker import Nursery
from evo.records import Configuration, Failure, Status
from evo.tasks.base import Case, Task
from evo.tasks.draws import Draw
from evo.tracing.compiler import Binary, Resources
from evo.tracing.plan import Kernel, LaunchPlan
from tests.evo_tests import ladder_task as modules
from tests.evo_tests.served_devices import breakage

SERVED = "tests.evo_tests.served_devices"
SETTINGS = EvaluationSettings(run_deadline_s=1.5)
SMALL, TRAINING = modules.TASK.small_cases, modules.TASK.training_cases


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def make(nursery: Nursery) -> Iterator[Callable[..., ReplayTier]]:
    tiers: list[ReplayTier] = []

    def made(device: str = "Device", judge: str = "Judge") -> ReplayTier:
        tiers.append(ReplayTier(SETTINGS, Processes(f"{SERVED}:{device}", f"{SERVED}:{judge}"), nursery))
        return tiers[-1]

    yield made
    for tier in tiers:
        tier.close()


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return dataclasses.replace(modules.TASK, path=tmp_path)


def candidate(what: str, case: Case = SMALL[0]) -> Candidate:
    kernel = Kernel("k", "module {}", (), {})
    steps = {"prepare": (), "forward": (), "backward": ()}
    plan = LaunchPlan("3", "cuda:90", (), (), (), (kernel,), steps, what, (), {})
    return Candidate(what, case, Configuration({}), plan, (Binary(kernel.kernel_hash, b"code", {}, Resources(0, 0, 0)),))


def check(tier: ReplayTier | Turns, task: Task, what: str, *cases: Case) -> list[Checked] | Failure:
    return tier.check_all(task, [(candidate(what, case), (Draw(0),)) for case in cases or SMALL])


def test_a_hang_is_a_timeout_and_the_next_candidate_is_unharmed(make: Callable[..., ReplayTier], task: Task) -> None:
    tier = make()
    verdict = check(tier, task, "hangs")
    assert isinstance(verdict, Failure)
    assert (verdict.status, verdict.message) == (Status.TIMEOUT, f"case {SMALL[0].name}: the kernels did not end within 1.5 s")
    started = time.monotonic()
    assert check(tier, task, "good") == [Checked(0.5, 4096)] * len(SMALL)
    assert time.monotonic() - started < 60


def test_a_fault_names_the_case_where_it_happened(make: Callable[..., ReplayTier], task: Task) -> None:
    tier = make()
    verdict = check(tier, task, "dies on training", *SMALL, *TRAINING)
    assert isinstance(verdict, Failure)
    assert verdict.status is Status.RUNTIME_ERROR
    assert verdict.message.startswith(f"case {TRAINING[0].name}: died")
    assert isinstance(check(tier, task, "good"), list)


BROKEN = r"GPU .* \(Paper GPU, GPU-0\) fails .* twice %s.*7 of 16777216 words.*2 uncorrected ECC"


def test_a_device_that_fails_twice_is_named_with_the_reason(
    make: Callable[..., ReplayTier], task: Task, nursery: Nursery
) -> None:
    tier, mark = make("Breaks"), breakage(nursery._process.pid)
    try:
        with pytest.raises(BadDeviceError, match=BROKEN % "after"):
            check(tier, task, "dies")
    finally:
        mark.unlink(missing_ok=True)


def test_a_device_that_is_not_well_at_the_start_is_not_used(make: Callable[..., ReplayTier]) -> None:
    """Also one that an earlier session of the run had in quarantine."""
    with pytest.raises(BadDeviceError, match=BROKEN % "at its start"):
        make("Sick")


def test_a_judge_that_dies_once_costs_nothing_but_time(make: Callable[..., ReplayTier], task: Task) -> None:
    tier = make()
    assert check(tier, task, "kills a judge") == [Checked(0.5, 4096)] * len(SMALL)
    assert tier.clock.counts["judges replaced"] == 1


def test_a_judge_that_dies_every_time_is_the_devices_fault(make: Callable[..., ReplayTier], task: Task) -> None:
    tier = make()
    with pytest.raises(DeviceError, match=r"Paper GPU.*judge could not answer") as raised:
        check(tier, task, "kills every judge")
    assert not isinstance(raised.value, BadDeviceError)


def test_wrong_values_are_not_believed_where_an_earlier_kernel_spoiled_the_inputs(
    make: Callable[..., ReplayTier], task: Task
) -> None:
    tier = make()
    assert isinstance(check(tier, task, "spoiled"), list), "the second look, on fresh inputs, passes"
    verdict = check(tier, task, "wrong")
    assert isinstance(verdict, Failure)
    assert verdict.status is Status.WRONG_VALUES


@pytest.mark.parametrize(
    ("what", "status", "text"),
    [
        ("writes", Status.GUARD_VIOLATION, "2 guard bands changed"),
        ("changes", Status.GUARD_VIOLATION, "changes argument 0"),
        ("races", Status.NONDETERMINISTIC, "equal calls give different bits"),
        ("reads", Status.GUARD_VIOLATION, "reads out of bounds"),
        ("leaves", Status.WRONG_VALUES, "memory that nothing wrote"),
    ],
)
def test_what_a_run_did_to_memory_is_told_as_such(
    make: Callable[..., ReplayTier], task: Task, what: str, status: Status, text: str
) -> None:
    """Though the judge finds the values right."""
    verdict = check(make(), task, what)
    assert isinstance(verdict, Failure)
    assert (verdict.status, text in verdict.message) == (status, True), verdict.message


def test_a_binary_travels_once(make: Callable[..., ReplayTier], task: Task) -> None:
    tier = make()
    for _ in range(3):
        check(tier, task, "good")
        tier.latency_us(task, candidate("good"))
    assert tier.counters()["shipped"] == len(SMALL), "with the first request, once per case of it"
    check(tier, task, "dies")
    assert isinstance(check(tier, task, "good"), list), "a new process is sent it again"
    forgetful = make("Forgetful")
    for _ in range(2):
        assert isinstance(check(forgetful, task, "good"), list), "one that dropped it asks for it"


def test_a_timed_call_that_differs_is_caught_and_throttling_is_no_candidates_fault(
    make: Callable[..., ReplayTier], task: Task
) -> None:
    tier = make()
    timings = tier.compare_all(task, [(candidate("good", TRAINING[0]), candidate("base", TRAINING[0]))], pairs=8, placement=0)
    assert isinstance(timings, list)
    assert (timings[0].latency_us, timings[0].baseline_us, len(timings[0].log_ratios)) == (10.0, 11.0, 8)
    assert tier.noise_of(task, TRAINING[0]) is not None
    assert tier.conditions() == "timed at SM clocks of 1755 to 1755 MHz, at most 41 °C"
    cheat = tier.compare_all(task, [(candidate("cheats", TRAINING[0]), candidate("base", TRAINING[0]))], pairs=8, placement=0)
    assert isinstance(cheat, Failure)
    assert cheat.signature == "wrong_values:timed call"
    with pytest.raises(DeviceError, match=r"throttles.*hardware thermal slowdown"):
        tier.compare_all(task, [(candidate("throttles", TRAINING[0]), candidate("base", TRAINING[0]))], pairs=8, placement=0)


def test_verification_has_other_processes_and_seeds_and_gives_the_warm_ones_back(
    make: Callable[..., ReplayTier], task: Task
) -> None:
    tier = make()
    check(tier, task, "good")
    warm, shipped = tier._seed(task, SMALL[0], 0), tier.counters()["shipped"]
    tier.fresh()
    assert tier._seed(task, SMALL[0], 0) != warm
    assert isinstance(check(tier, task, "good"), list)
    tier.settle()
    assert tier._seed(task, SMALL[0], 0) == warm
    assert tier.counters()["shipped"] == shipped


def test_faults_of_one_climb_never_become_verdicts_on_another(make: Callable[..., ReplayTier], task: Task) -> None:
    tier, sharing = make(), Sharing()
    expected = {
        "good": "passed", "dies": "runtime_error", "wrong": "wrong_values", "reads": "guard_violation", "hangs": "timeout",
        "kills a judge": "passed",
    }  # fmt: skip
    work = (["good", "dies", "good", "wrong", "reads", "good"] * 12) + ["hangs", "kills a judge", "good"]

    def climb(what: str) -> tuple[str, str]:
        turns = Turns(tier, sharing, tier.clock)
        checked = check(turns, task, what)
        if isinstance(checked, Failure):
            return what, checked.status.value
        timed = turns.compare_all(task, [(candidate(what, TRAINING[0]), candidate("base", TRAINING[0]))], pairs=8, placement=0)
        return what, "passed" if isinstance(timed, list) else timed.status.value

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(climb, work))
    assert [pair for pair in found if expected[pair[0]] != pair[1]] == []
    assert tier.gpu_s < sum(tier.clock.seconds.values()) - tier.clock.seconds["wait for device"], "overlapping seconds count once"


@pytest.mark.parametrize("fault", ["wrong", "writes", "leaves", "good"])
def test_no_device_memory_stays_lent_whatever_the_verdict(
    make: Callable[..., ReplayTier], task: Task, tmp_path: Path, fault: str
) -> None:
    verdict = check(make("Lender", "Borrower"), task, fault, *SMALL, *SMALL)
    assert isinstance(verdict, Failure) == (fault != "good")
    assert not list(tmp_path.glob("lent-*"))


SHORTAGE = "2.00 GiB asked for, 1.50 GiB of 7.79 GiB free"


def test_memory_that_others_left_over_blames_nobody(make: Callable[..., ReplayTier], task: Task) -> None:
    tier = make()
    assert check(tier, task, "crowds") == [Checked(0.5, 4096)] * len(SMALL), "each case alone fits into a new process"
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda what: check(tier, task, what), ["crowds", "good"] * 4))
    assert all(isinstance(item, list) for item in found)


def test_a_candidate_that_is_too_large_alone_is_told_how_much_it_asked_for(make: Callable[..., ReplayTier], task: Task) -> None:
    tier = make()
    pair = (candidate("too large", TRAINING[0]), candidate("base", TRAINING[0]))
    verdicts = [
        check(tier, task, "too large"),
        tier.latency_us(task, pair[0]),
        tier.compare_all(task, [pair], pairs=8, placement=0),
    ]
    for verdict in verdicts:
        assert isinstance(verdict, Failure)
        assert verdict.status is Status.OUT_OF_RESOURCES
        assert verdict.message.endswith(SHORTAGE)
    assert isinstance(check(tier, task, "good"), list)


@pytest.mark.parametrize(("device", "judge"), [("Tiny", "Judge"), ("Device", "TinyJudge")])
def test_a_case_that_no_candidate_fits_in_is_the_tasks_fault(
    make: Callable[..., ReplayTier], task: Task, device: str, judge: str
) -> None:
    tier = make(device, judge)
    with pytest.raises(TaskError, match=rf"case {SMALL[0].name}, .* does not fit into GPU .*Paper GPU.*{SHORTAGE}"):
        check(tier, task, "too large")
    if device == "Tiny":
        with pytest.raises(TaskError, match=f"case {TRAINING[0].name}"):
            tier.compare_all(task, [(candidate("good", TRAINING[0]), candidate("base", TRAINING[0]))], pairs=8, placement=0)


def test_starting_a_process_is_not_part_of_a_run(make: Callable[..., ReplayTier], task: Task) -> None:
    """Neither for a verification, which has new processes, nor for whoever comes after a fault."""
    tier = make("Slow")
    tier.fresh()
    assert isinstance(check(tier, task, "good"), list)
    tier.settle()
    for _ in range(2):
        died = check(tier, task, "dies")
        assert isinstance(died, Failure)
        assert died.status is Status.RUNTIME_ERROR
    assert isinstance(check(tier, task, "good"), list)
