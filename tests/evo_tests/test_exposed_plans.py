"""A module whose knobs were exposed launches, in its declared configuration, exactly what it launched before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from evo.knobs import read_knobs
from evo.records import Configuration
from evo.tasks.base import Case, Task, TensorSpec
from evo.tracing.plan import LaunchPlan
from evo.tracing.tracer import Tracer
from experiments.suites.tritonbench import Recording, read_file, suite_files
from operators.knobs import expose
from tests.evo_tests.awkward_kernels import TASKS, source_of
from tests.operators_tests.launch_ways import HEAD, KERNEL, WAYS

SUITE = "TRITON_EVOLVE_TRITONBENCH"
"""Environment variable that names a folder TritonBench_G_v1 to trace too."""
ENTRY = "\n\ndef entry(x):\n    y = torch.empty_like(x)\n    f(x, y, x.numel(){more})\n    return y\n"


@pytest.fixture(scope="module")
def tracer() -> Iterator[Tracer]:
    owned = Tracer("cuda:90")
    yield owned
    owned.close()


def check_alike(tracer: Tracer, source: str, task: Task, case: Case) -> LaunchPlan:
    """The plan of the original; that of the exposed module is the same."""
    before = tracer.trace(source, task, case, Configuration({}))
    assert isinstance(before, LaunchPlan), before
    exposed = expose(source, task.training_cases)
    after = tracer.trace(exposed.source, task, case, read_knobs(exposed.source).default)
    assert isinstance(after, LaunchPlan), after
    assert after.plan_hash == before.plan_hash, exposed.found
    return before


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_giving_options_keeps_its_plan_and_follows_its_knobs(way: str, tracer: Tracer) -> None:
    source = HEAD + KERNEL + WAYS[way][0] + ENTRY.format(more=", 1" if way == "a table" else "")
    case, small = (Case(name, (TensorSpec((5000,), "float32"),), bytes=1, flops=0) for name in ("only", "small"))
    task = Task("adds", "adds one", "entry", torch.add, (case,), (), (small,), ())
    before = check_alike(tracer, source, task, case)
    exposed = expose(source).source
    turned = tracer.trace(exposed, task, case, Configuration({"BLOCK": 128, "num_warps": 2}))
    assert isinstance(turned, LaunchPlan), turned
    grids = [[step.grid for step in plan.steps["forward"] if hasattr(step, "grid")] for plan in (before, turned)]
    assert grids == [[(10, 1, 1)], [(40, 1, 1)]], "the grid follows the tile"
    assert turned.kernels[0].options["num_warps"] == 2


@pytest.mark.parametrize("name", TASKS)
def test_awkward_kernels_keep_their_plans(name: str, tracer: Tracer) -> None:
    task = TASKS[name]
    check_alike(tracer, source_of(task), task, task.training_cases[0])


@pytest.mark.slow
@pytest.mark.skipif(SUITE not in os.environ, reason=f"{SUITE} names no folder")
def test_files_of_tritonbench_keep_their_plans(tracer: Tracer) -> None:
    recording, same = Recording("cuda:90"), 0
    try:
        for path in suite_files(Path(os.environ[SUITE])):
            for called in recording.calls(read_file(path)).called:
                case = called.task.training_cases[0]
                if isinstance(tracer.trace(called.source, called.task, case, Configuration({})), LaunchPlan):
                    check_alike(tracer, called.source, called.task, case)
                    same += 1
    finally:
        recording.close()
    assert same > 0
