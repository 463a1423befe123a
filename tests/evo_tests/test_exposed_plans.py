"""A module whose knobs were exposed launches, in its declared configuration, exactly what it launched before."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from evo.knobs import read_knobs
from evo.records import Configuration
from evo.suites.recording import Recording
from evo.suites.tritonbench_files import read_file, recorded_calls, suite_files
from evo.tasks.base import Case, Task, TensorSpec
from evo.tracing.plan import LaunchPlan
from evo.tracing.tracer import Tracer
from evo.tracing.workbench import Job, Prepared, Workbench
from operators.knobs import expose
from tests.evo_tests.awkward_kernels import TASKS, source_of
from tests.operators_tests.launch_ways import HEAD, KERNEL, WAYS

pytestmark = pytest.mark.slow

SUITE = "TRITON_EVOLVE_TRITONBENCH"
"""Environment variable that names a folder TritonBench_G_v1 to trace too."""
ENTRY = "\n\ndef entry(x):\n    y = torch.empty_like(x)\n    f(x, y, x.numel(){more})\n    return y\n"


CASE, SMALL = (Case(name, (TensorSpec((5000,), "float32"),), bytes=1, flops=0) for name in ("only", "small"))
ADDS = {way: Task("adds_" + way.replace(" ", "_"), "adds one", "entry", torch.add, (CASE,), (), (SMALL,), ()) for way in WAYS}
TURNED = Configuration({"BLOCK": 128, "num_warps": 2})
Plans = Mapping[str, tuple[LaunchPlan, ...]]
"""Task → plans of the original, of the exposed module as declared and, of the ways, turned."""


def source_of_way(way: str) -> str:
    return HEAD + KERNEL + WAYS[way][0] + ENTRY.format(more=", 1" if way == "a table" else "")


def jobs_of(source: str, task: Task, *more: Configuration) -> list[Job]:
    """The original, the exposed module as it declares itself, and further configurations of it."""
    exposed = expose(source, task.training_cases).source
    case = task.training_cases[0]
    tried = (read_knobs(exposed).default, *more)
    return [Job(source, task, case, Configuration({}), False), *(Job(exposed, task, case, item, False) for item in tried)]


@pytest.fixture(scope="module")
def plans() -> Plans:
    """All at once, on two cores: most of a trace is the start of its process."""
    jobs = [job for way, task in ADDS.items() for job in jobs_of(source_of_way(way), task, TURNED)]
    jobs += [job for task in TASKS.values() for job in jobs_of(source_of(task), task)]
    bench = Workbench("cuda:90", workers=2)
    try:
        traced = bench.prepare(jobs)
    finally:
        bench.close()
    found: dict[str, tuple[LaunchPlan, ...]] = {}
    for job, item in zip(jobs, traced, strict=True):
        assert isinstance(item, Prepared), (job.task.name, item)
        found[job.task.name] = (*found.get(job.task.name, ()), item.plan)
    return found


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_giving_options_keeps_its_plan_and_follows_its_knobs(way: str, plans: Plans) -> None:
    before, after, turned = plans[ADDS[way].name]
    assert after.plan_hash == before.plan_hash
    grids = [[step.grid for step in plan.steps["forward"] if hasattr(step, "grid")] for plan in (before, turned)]
    assert grids == [[(10, 1, 1)], [(40, 1, 1)]], "the grid follows the tile"
    assert turned.kernels[0].options["num_warps"] == 2


@pytest.mark.parametrize("name", TASKS)
def test_awkward_kernels_keep_their_plans(name: str, plans: Plans) -> None:
    before, after = plans[name]
    assert after.plan_hash == before.plan_hash


@pytest.mark.slow
@pytest.mark.skipif(SUITE not in os.environ, reason=f"{SUITE} names no folder")
def test_files_of_tritonbench_keep_their_plans() -> None:
    recording, tracer, same = Recording("cuda:90"), Tracer("cuda:90"), 0
    try:
        for path in suite_files(Path(os.environ[SUITE])):
            for called in recorded_calls(recording, read_file(path)).called:
                case = called.task.training_cases[0]
                before = tracer.trace(called.source, called.task, case, Configuration({}))
                if isinstance(before, LaunchPlan):
                    exposed = expose(called.source, called.task.training_cases)
                    after = tracer.trace(exposed.source, called.task, case, read_knobs(exposed.source).default)
                    assert isinstance(after, LaunchPlan), after
                    assert after.plan_hash == before.plan_hash, exposed.found
                    same += 1
    finally:
        recording.close()
        tracer.close()
    assert same > 0
