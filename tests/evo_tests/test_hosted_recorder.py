"""What the recording driver writes down of really compiled kernels is what the tracer wrote down, hash for hash."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.compiler

from evo.evaluation.hosted_recorder import Watch, watch_launches
from evo.evaluation.observed import difference
from evo.knobs import read_knobs
from evo.tasks.inputs import make_inputs
from evo.tasks.loading import load_task, starting_sources
from evo.tracing.facade import StandInDriver
from evo.tracing.plan import LaunchPlan
from evo.tracing.pruning import keep_needed
from evo.tracing.recorder import Recording
from evo.tracing.targets import TARGETS
from evo.tracing.trace_child import load_module, recorded_call
from evo.tracing.tracer import Tracer

TARGET = "cuda:90"


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Names of kernels that Triton launched: it compiles for a GPU that is not here, and its launcher does nothing."""
    names: list[str] = []

    def loaded(kernel: Any) -> None:
        kernel.module = kernel.function = 1
        kernel._run = lambda *arguments: names.append(kernel.name)

    monkeypatch.setattr(triton.compiler.CompiledKernel, "_init_handles", loaded)
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(triton.runtime.driver, "_active", StandInDriver(TARGETS[TARGET]))
    return names


@pytest.mark.parametrize("name", ["softmax", "quantize_rows"])
def test_a_recorded_call_has_the_plan_of_its_trace(launched: list[str], name: str) -> None:
    task = load_task(name)
    source, case = starting_sources(task)[0], task.small_cases[0]
    configuration = read_knobs(source).default
    tracer = Tracer(TARGET)
    judged = tracer.trace(source, task, case, configuration)
    tracer.close()
    assert isinstance(judged, LaunchPlan), judged
    watch, recording = Watch(), Recording(TARGET, triton.__version__, 0)
    arguments = list(make_inputs(task, case, 3, "cpu").arguments)
    for position, item in enumerate(arguments):
        if isinstance(item, torch.Tensor):
            recording.supply("argument", position, item)
    with ExitStack() as stack:
        watch_launches(watch, stack, interpreted=False, recording=True)
        entry = getattr(load_module(source, configuration), task.entry)
        for phases in (("prepare", "prepare"), ("forward", "backward")):
            with watch.recorded(recording):
                outputs, gradients = recorded_call(entry, arguments, [], recording, phases)
    told = json.loads(json.dumps(keep_needed(recording.plan(outputs, gradients)).to_json()))
    seen = LaunchPlan.from_json(told)
    assert difference(seen, judged) is None
    assert seen.plan_hash == judged.plan_hash
    assert len(launched) == 2 * len(judged.launches) == watch.launches, "every recorded launch was really made"
