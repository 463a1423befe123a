"""What compute-sanitizer reports becomes a verdict, and what keeps it from running becomes a note: real processes, recorded reports."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from evo.evaluation.sanitize import Sanitizers, find_sanitizer, read_report
from evo.evaluation.sanitize_child import DONE
from evo.evaluation.tier import Candidate
from evo.records import Configuration, Failure, Stage, Status
from evo.tracing.compiler import Compiler
from evo.tracing.plan import LaunchPlan
from evo.tracing.tracer import Tracer
from tests.evo_tests import ladder_task as modules

pytestmark = pytest.mark.slow

CLEAN = f"========= COMPUTE-SANITIZER\n{DONE}\n========= ERROR SUMMARY: 0 errors\n"
BEYOND = f"""========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at kernel+0x2b0 in kernel.py:17
=========     by thread (31,0,0) in block (4,0,0)
=========     Address 0x7f2f5fa00a50 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f2f5fa00800 of size 592 bytes
{DONE}
========= ERROR SUMMARY: 1 error
"""
OLDER = BEYOND.replace("at kernel+0x2b0 in kernel.py:17", "at 0x2b0 in kernel")
RACE = f"""========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at kernel+0x140 in kernel.py:9
=========     and Read access at kernel+0x1f0 in kernel.py:11 [64 hazards]
=========
{DONE}
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
WARNING = f"""========= COMPUTE-SANITIZER
========= Warning: Race reported between Read access at kernel+0x190 in kernel.py:9
=========     and Write access at kernel+0x1d0 in kernel.py:9 [32 hazards]
{DONE}
========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)
"""


@pytest.mark.parametrize(
    ("tool", "report", "expected"),
    [
        ("memcheck", CLEAN, "memcheck"),
        ("racecheck", CLEAN.replace("ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 0 hazards displayed"), "racecheck"),
        ("racecheck", WARNING, "racecheck"),
        ("memcheck", BEYOND.replace("at kernel+", "at void at::native::fill_kernel<float>(int)+"), "memcheck"),
        (
            "memcheck",
            "========= Error: Device not supported. Please refer to the manual.\n",
            "memcheck not applied: Device not supported",
        ),
        ("memcheck", "", "memcheck not applied: no report"),
        ("memcheck", "Traceback\nModuleNotFoundError: No module named 'torch'\n", "memcheck not applied: ModuleNotFoundError"),
        (
            "memcheck",
            f"{DONE}\n========= Something new\n========= ERROR SUMMARY: 3 errors\n",
            "memcheck not applied: its report is not",
        ),
    ],
)
def test_reports_without_a_fault_of_the_kernel(tool: str, report: str, expected: str) -> None:
    found = read_report(tool, report, True, {"kernel"})
    assert isinstance(found, str)
    assert found.startswith(expected)


@pytest.mark.parametrize(
    ("tool", "report", "status", "text"),
    [
        ("memcheck", BEYOND, Status.GUARD_VIOLATION, "Invalid __global__ read of size 4 bytes in kernel"),
        ("memcheck", OLDER, Status.GUARD_VIOLATION, "Invalid __global__ read"),
        ("racecheck", RACE, Status.NONDETERMINISTIC, "Race reported between Write access at kernel+0x140"),
    ],
)
def test_the_first_error_of_the_kernel_is_the_verdict(tool: str, report: str, status: Status, text: str) -> None:
    found = read_report(tool, report, True, {"kernel"})
    assert isinstance(found, Failure)
    assert (found.status, found.stage) == (status, Stage.VERIFY)
    assert text in found.message


def program(folder: Path, text: str) -> str:
    path = folder / "compute-sanitizer"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture(scope="module")
def candidate() -> Candidate:
    tracer, compiler = Tracer("cuda:90"), Compiler("cuda:90")
    case = modules.TASK.small_cases[0]
    plan = tracer.trace(modules.GOOD, modules.TASK, case, Configuration())
    assert isinstance(plan, LaunchPlan)
    binaries = compiler.compile_plan(plan)
    tracer.close()
    compiler.close()
    assert isinstance(binaries, tuple)
    return Candidate(modules.GOOD, case, Configuration(), plan, binaries)


def test_a_tool_that_does_not_run_here_is_a_note(tmp_path: Path, candidate: Candidate) -> None:
    here = Sanitizers(executable=program(tmp_path, "echo 'Error: Device not supported'; exit 1"))
    assert here.examine(modules.TASK, [candidate]) == (
        "memcheck not applied: Device not supported", "racecheck not applied: Device not supported",
    )  # fmt: skip


def test_a_tool_that_hangs_is_ended_with_all_it_started(tmp_path: Path, candidate: Candidate) -> None:
    number = tmp_path / "pid"
    slow = Sanitizers(deadline_s=0.5, executable=program(tmp_path, f"sleep 600 & echo $! > {number}; wait"))
    assert slow.examine(modules.TASK, [candidate]) == (
        "memcheck not applied: it took too long", "racecheck not applied: it took too long",
    )  # fmt: skip
    left, until = Path(f"/proc/{number.read_text().strip()}/stat"), time.monotonic() + 5
    while left.exists() and left.read_text().split()[2] != "Z":  # the signal is on its way
        assert time.monotonic() < until
        time.sleep(0.02)


def test_the_program_is_given_to_the_tool_and_finds_what_to_replay(tmp_path: Path, candidate: Candidate) -> None:
    # Without a GPU it comes as far as the device: the file was read, the task loaded and the plan found to fit its binaries.
    passing_on = program(tmp_path, 'while [ "$1" != "-m" ]; do python=$1; shift; done; exec "$python" "$@"')
    checks = Sanitizers(executable=passing_on).examine(modules.TASK, [candidate])
    assert isinstance(checks, tuple)
    assert all(check in ("memcheck", "racecheck") or "driver" in check.lower() for check in checks), checks


@pytest.mark.gpu
@pytest.mark.skipif(find_sanitizer() is None, reason="compute-sanitizer is not installed")
def test_a_good_kernel_passes_and_a_read_beyond_its_buffer_is_found() -> None:
    from evo.evaluation.replay import ReplayTier
    from evo.evaluation.settings import EvaluationSettings

    tier = ReplayTier(EvaluationSettings())
    tracer, compiler = Tracer(tier.capability), Compiler(tier.capability)
    reads = modules.GOOD.replace("mask=at < columns, other=0.0)", "mask=at < columns + 64, other=0.0) * (at < columns)")
    assert reads != modules.GOOD
    for source, fault in ((modules.GOOD, False), (reads, True)):
        case = modules.TASK.small_cases[0]
        plan = tracer.trace(source, modules.TASK, case, Configuration())
        assert isinstance(plan, LaunchPlan)
        binaries = compiler.compile_plan(plan)
        assert isinstance(binaries, tuple)
        outcome = Sanitizers().examine(modules.TASK, [Candidate(source, case, Configuration(), plan, binaries)])
        if isinstance(outcome, tuple) and "not applied" in outcome[0]:
            pytest.skip(outcome[0])
        assert isinstance(outcome, Failure) == fault, outcome
    for owner in (tracer, compiler, tier):
        owner.close()


def test_where_it_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert find_sanitizer() != str(tmp_path / "compute-sanitizer")
    program(tmp_path, "exit 0")
    assert find_sanitizer() == str(tmp_path / "compute-sanitizer")
