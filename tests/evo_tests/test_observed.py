"""Modules with two faces, and honest ones, are recorded in use and held against their judged plans: real tracer, real processes."""

from __future__ import annotations

import ast
import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evo.evaluation.hosted import Host
from evo.evaluation.hosted_sides import HostedWork
from evo.evaluation.observed import RecordedUse, difference
from evo.evaluation.tier import Candidate
from evo.records import Configuration, Failure, Stage, Status
from evo.tasks.base import Task
from evo.tasks.loading import load_task
from evo.tracing.plan import LaunchPlan
from evo.tracing.tracer import Tracer

FOLDER = Path(__file__).parent / "exploits"
TWO_FACED = sorted((FOLDER / "two_faced").glob("two_faced_*.py"))
CALLS = 5


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(str(FOLDER / "tasks" / "sums.py"))


@pytest.fixture(scope="module")
def tracer() -> Iterator[Tracer]:
    tracer = Tracer("cuda:90")
    yield tracer
    tracer.close()


@pytest.fixture(scope="module")
def recorded_use() -> Iterator[RecordedUse]:
    examination = RecordedUse("cpu", deadline_s=120, calls=CALLS)
    yield examination
    examination.close()


def traced(tracer: Tracer, task: Task, source: str) -> LaunchPlan:
    plan = tracer.trace(source, task, task.small_cases[0], Configuration())
    assert isinstance(plan, LaunchPlan), plan
    return plan


def candidate(tracer: Tracer, task: Task, source: str) -> Candidate:
    return Candidate(source, task.small_cases[0], Configuration(), traced(tracer, task, source), ())


HONEST = (FOLDER / "tasks" / "sums_kernel.py").read_text()
KEEPS_STATE = HONEST.replace(
    "def entry(x):",
    "_made = {}\n\n\ndef entry(x):\n    _made.setdefault(x.shape, torch.ones(4, device=x.device))",
)


@pytest.mark.parametrize("source", [HONEST, KEEPS_STATE], ids=["honest", "keeps state"])
def test_a_module_that_does_in_use_what_was_traced_passes(
    tracer: Tracer, recorded_use: RecordedUse, task: Task, source: str
) -> None:
    assert recorded_use.examine(task, [candidate(tracer, task, source)]) == ("recorded use",)


@pytest.mark.parametrize("path", TWO_FACED, ids=lambda path: path.stem)
def test_a_module_with_two_faces_is_refused(tracer: Tracer, recorded_use: RecordedUse, task: Task, path: Path) -> None:
    header = next(
        ast.literal_eval(node.value)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "EXPLOIT"
    )
    verdict = recorded_use.examine(task, [candidate(tracer, task, path.read_text())])
    assert isinstance(verdict, Failure), verdict
    assert ["recorded use", verdict.stage.value, verdict.status.value] == header["stopped"]["observed"]
    assert verdict.message.startswith(f"case {task.small_cases[0].name}: in use the module does something else")


def test_the_difference_names_what_differs(tracer: Tracer, task: Task) -> None:
    judged = traced(tracer, task, HONEST)
    assert difference(judged, judged) is None
    other = traced(tracer, task, HONEST.replace("* 2)", "* 3)"))
    assert "other code" in str(difference(other, judged))
    assert difference(other, judged, code=False) is None
    twice = dataclasses.replace(judged, steps={**judged.steps, "forward": judged.steps["forward"] * 2})
    assert "it does more in its forward phase" in str(difference(twice, judged))
    assert "it does less in its forward phase" in str(difference(judged, twice))


@pytest.fixture
def over() -> Iterator[Callable[[str], RecordedUse]]:
    """Recorded use over a host of `tests.evo_tests.served_hosts`."""
    made: list[RecordedUse] = []

    def make(name: str) -> RecordedUse:
        made.append(
            RecordedUse("cpu", deadline_s=120, calls=CALLS, host=Host("cpu", 120, f"tests.evo_tests.served_hosts:{name}"))
        )
        return made[-1]

    yield make
    for examination in made:
        examination.close()


@pytest.fixture
def copied_task(tmp_path: Path) -> Task:
    """In a folder that hosts may count in."""
    for name in ("sums.py", "sums_kernel.py"):
        shutil.copy(FOLDER / "tasks" / name, tmp_path)
    return load_task(str(tmp_path / "sums.py"))


def test_a_module_whose_use_cannot_be_recorded_twice_is_refused(
    over: Callable[[str], RecordedUse], tracer: Tracer, copied_task: Task
) -> None:
    verdict = over("Ending").examine(copied_task, [candidate(tracer, copied_task, HONEST)])
    assert isinstance(verdict, Failure), verdict
    assert (verdict.status, verdict.stage, verdict.signature) == (Status.REJECTED, Stage.VERIFY, "rejected:observed:host")
    assert copied_task.path is not None
    assert copied_task.path.with_suffix(".looks").read_text() == "xx", "it was looked at twice"


def test_a_host_that_ends_once_is_no_verdict(over: Callable[[str], RecordedUse], tracer: Tracer, copied_task: Task) -> None:
    assert over("EndingOnce").examine(copied_task, [candidate(tracer, copied_task, HONEST)]) == ("recorded use",)


def test_a_host_without_memory_is_tried_again_in_a_new_process(tmp_path: Path) -> None:
    host = Host("cpu", 30, "tests.evo_tests.served_hosts:FullOnce")
    try:
        assert host.call("latency_us", HostedWork(str(tmp_path / "task.py"), "", {}), "case", 1) == 7.0
    finally:
        host.close()


def test_a_machine_that_cannot_record_says_so(over: Callable[[str], RecordedUse], tracer: Tracer, task: Task) -> None:
    found = over("Unmakeable").examine(task, [candidate(tracer, task, HONEST)])
    assert isinstance(found, tuple)
    assert found[0].startswith("recorded use not applied: ")
    assert "no CUDA-capable device" in found[0]
