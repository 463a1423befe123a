"""Modules with two faces, and honest ones, are recorded in use and held against their judged plans: real tracer, real processes."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from evo.evaluation.observed import RecordedUse, difference
from evo.evaluation.tier import Candidate
from evo.records import Configuration, Failure
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
    examination = RecordedUse("cpu", deadline_s=30, calls=CALLS)
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
