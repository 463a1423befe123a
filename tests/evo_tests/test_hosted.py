"""Hosted candidates in real processes, under Triton's interpreter: what passes, and what each cheat and fault comes to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evo.errors import SandboxError
from evo.evaluation.failed import Failed
from evo.evaluation.hosted_host import CpuHost
from evo.evaluation.hosted_session import HostedProcess
from evo.evaluation.hosted_sides import HostedWork
from evo.evaluation.tier import Checked, Timing
from evo.records import Failure, Stage, Status
from evo.tasks.draws import Draw
from evo.tracing.sandbox import FILTERED, ForkServer, Limits, abilities
from tests.evo_tests import hosted_modules as modules
from tests.evo_tests.hosted_task import GOOD, TASK

DRAWS = (Draw(11), Draw(12))
CASE = TASK.small_cases[0].name


@pytest.fixture(scope="module")
def host() -> Iterator[CpuHost]:
    host = CpuHost()
    yield host
    host.close()


def work(source: str, **configuration: int) -> HostedWork:
    return HostedWork(str(TASK.path), source, configuration)


def checked(host: CpuHost, source: str, deadline_s: float = 120) -> Checked | Failure:
    return host.check(work(source), CASE, DRAWS, deadline_s)


def test_a_kernel_that_looks_at_values_passes_on_every_case(host: CpuHost) -> None:
    for case in TASK.cases:
        verdict = host.check(work(GOOD, BLOCK=32), case.name, DRAWS[:1], 120)
        assert isinstance(verdict, Checked), verdict
        assert verdict.error_ratio <= 1
        assert verdict.peak_bytes == 4 * case.arguments[1].numel  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "status", "text"),
    [
        ("WRONG", Status.WRONG_VALUES, "expected"),
        ("REMEMBERS", Status.WRONG_VALUES, "expected"),
        ("LIBRARY", Status.REJECTED, "aten.add"),
        ("NO_KERNEL", Status.REJECTED, "no Triton kernel"),
        ("CHANGES_ITS_INPUT", Status.GUARD_VIOLATION, "argument 0"),
        ("WRITES_BEHIND_ITS_INPUT", Status.GUARD_VIOLATION, "outside its buffers"),
        ("EXITS", Status.RUNTIME_ERROR, "ended its process: exit 0"),
        ("RAISES", Status.RUNTIME_ERROR, "ValueError: no\n  at line"),
        ("TOO_LARGE", Status.OUT_OF_RESOURCES, "Tried to allocate 2.00 GiB.\n  at line"),
        ("ANOTHER_SHAPE", Status.WRONG_STRUCTURE, "[1, 3]"),
        ("RETURNS_ITS_INPUT", Status.WRONG_STRUCTURE, "output 0 shares memory with argument 0"),
        ("RETURNS_ONE_BUFFER_TWICE", Status.WRONG_STRUCTURE, "output 0 shares memory with output 1"),
        ("RETURNS_A_NUMBER", Status.WRONG_STRUCTURE, "float"),
        ("RANDOM", Status.NONDETERMINISTIC, "different bits"),
    ],
)
def test_a_fault_is_told(host: CpuHost, name: str, status: Status, text: str) -> None:
    verdict = checked(host, getattr(modules, name))
    assert isinstance(verdict, Failure), verdict
    assert (verdict.status, text in verdict.message) == (status, True), verdict
    assert verdict.message.startswith(f"case {CASE}: ")


@pytest.mark.skipif(not abilities()[FILTERED], reason="no system calls are filtered here, as `triton-evolve doctor` tells")
@pytest.mark.parametrize("filtered", [True, False])
def test_no_candidate_runs_where_its_process_could_connect_to_services(filtered: bool) -> None:
    request = {
        "device": "cpu", "source": "raise ValueError('it ran')", "entry": "f", "form": "function", "configuration": {},
        "init_arguments": [], "backward": False, "mutates": [], "target": None,
    }  # fmt: skip
    preload = ("evo.evaluation.hosted_child", *(() if filtered else ("tests.evo_tests.hosted_unfiltered",)))
    server = ForkServer("hosted", Limits(), preload=preload, environment={"TRITON_INTERPRET": "1"}, gpu=True)
    server.start()
    try:
        process = HostedProcess(server, request, deadline_s=120)
        expected, words = (Failed, "it ran") if filtered else (SandboxError, "could not be kept from connecting")
        with pytest.raises(expected, match=words):
            process.load()
        process.end()
    finally:
        server.close()


def test_a_hang_ends_at_its_deadline_and_the_host_lives_on(host: CpuHost) -> None:
    verdict = checked(host, modules.HANGS, deadline_s=3)
    assert isinstance(verdict, Failure)
    assert verdict.status is Status.TIMEOUT
    assert isinstance(checked(host, GOOD), Checked)


@pytest.mark.parametrize(
    "said",
    [
        b"\xff" * 8,
        b"not JSON",
        b"[" * 100_000,
        b'{"done": 3}',
        b'{"failure": {"status": "passed"}}',
        b'{"done": {}}',
    ],
)
def test_what_a_candidate_says_for_its_process_gains_it_nothing(host: CpuHost, said: bytes) -> None:
    verdict = checked(host, modules.SPEAKS_FOR_THE_PROCESS % said)
    assert isinstance(verdict, Failure)
    assert verdict.status in (Status.REJECTED, Status.WRONG_VALUES, Status.WRONG_STRUCTURE), verdict


@pytest.mark.parametrize(
    "described",
    [
        {"dtype": "float32", "shape": [1 << 39], "strides": [1]},
        {"dtype": "float32", "shape": [1 << 39], "strides": [0]},
        {"dtype": "float32", "shape": [3], "strides": [-1]},
        {"dtype": "__class__", "shape": [3], "strides": [1]},
        {"dtype": ["float32"], "shape": [3], "strides": [1]},
        {"dtype": "float32", "shape": [True], "strides": [1]},
        {"handle": "00" * 64, "nbytes": 1 << 40},
        "cuda:0",
    ],
)
def test_a_forged_description_of_outputs_is_refused(host: CpuHost, described: object) -> None:
    verdict = checked(host, modules.DESCRIBES % (described,))
    assert isinstance(verdict, Failure)
    assert verdict.status is Status.REJECTED, verdict


def test_calls_are_timed_in_pairs(host: CpuHost) -> None:
    timing = host.compare(work(GOOD, BLOCK=64), work(GOOD, BLOCK=32), CASE, 4, 0.0, 120)
    assert isinstance(timing, Timing), timing
    assert len(timing.log_ratios) == 4
    assert min(timing.latency_us, timing.baseline_us) > 0


def test_work_that_is_done_after_a_timed_call_is_noticed(host: CpuHost) -> None:
    honest_calls = 4  # while everything is compiled; what follows is timed
    verdict = host.compare(work(modules.LATER % honest_calls), work(GOOD), CASE, 4, 0.0, 120)
    assert isinstance(verdict, Failure), verdict
    assert verdict.status in (Status.WRONG_VALUES, Status.NONDETERMINISTIC)
    assert verdict.stage is Stage.TIME


def test_outputs_that_are_handed_over_after_the_answer_are_noticed(host: CpuHost) -> None:
    verdict = host.compare(work(modules.PLACES_LATER % 4), work(GOOD), CASE, 4, 0.0, 120)
    assert isinstance(verdict, Failure), verdict
    assert (verdict.status, verdict.stage) == (Status.WRONG_VALUES, Stage.TIME), verdict
