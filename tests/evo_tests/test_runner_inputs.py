"""Inputs reach a plan's storages as the task describes them, whatever their strides; no GPU is needed to see that."""

from __future__ import annotations

import pytest
import torch

from evo.evaluation.guarded import GuardedMemory
from evo.evaluation.inputs import make_inputs
from evo.evaluation.runner import Execution
from evo.tasks.base import Case, Task, TensorSpec
from evo.tracing.plan import LaunchPlan, Source, Value

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [((4, 8), (8, 1), 0), ((4, 8), (0, 1), 0), ((4, 8), (20, 2), 3), ((8, 4), (1, 8), 0), ((), (), 1), ((0, 4), (4, 1), 0)],
)
def test_an_input_keeps_its_values_and_strides(shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> None:
    case = Case("one", (TensorSpec(shape, "float32", strides=strides, offset=offset),), 1, 0)
    task = Task("copied", "", "entry", lambda x: x, (case,), (), (Case("small", case.arguments, 1, 0),), ())
    given = make_inputs(task, case, 3, CPU).arguments[0]
    value = Value(0, "float32", shape, strides, offset)
    steps = {"prepare": (), "forward": (), "backward": ()}
    plan = LaunchPlan("3", "cuda:90", (value.extent,), (value,), (Source("argument", 0, 0),), (), steps, {"value": 0}, (), {})
    memory = GuardedMemory(CPU)
    execution = Execution(plan, (), memory, CPU)
    execution.supply("argument", {0: given})
    found = execution.value(0)
    assert torch.equal(found, given)
    assert found.stride() == strides
    assert memory.violations() == 0
