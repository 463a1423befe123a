"""Checked runs on a CPU, of plans without kernels: what they read beyond buffers, leave undefined or change between elements is seen."""

from __future__ import annotations

import pytest
import torch

from evo.evaluation.checking import Checker, Differs
from evo.evaluation.inputs import make_inputs
from evo.tasks.base import Case, Task, TensorSpec
from evo.tracing.plan import Allocate, Copy, Fill, LaunchPlan, Operator, Source, Step, Value

CPU = torch.device("cpu")
SHAPE, STRIDES = (4, 8), (20, 2)
EXTENT = (3 * 20 + 7 * 2 + 1) * 4
IN, OUT, GAP, BEHIND, BEFORE = 0, 1, 2, 3, 4


def checker(*steps: Step, mutates: tuple[int, ...] = (), offset: int = 0) -> Checker:
    """A plan over a strided argument (value 0) and an output (value 1); value 2 lies between the argument's elements, value 3 behind its
    storage, value 4 before its first element."""
    case = Case("one", (TensorSpec(SHAPE, "float32", strides=STRIDES, offset=offset),), 1, 0)
    task = Task("copied", "", "entry", lambda x: x, (case,), (), (Case("small", case.arguments, 1, 0),), (), mutates=mutates)
    values = (
        Value(0, "float32", SHAPE, STRIDES, offset),
        Value(1, "float32", SHAPE, (8, 1), 0),
        Value(0, "float32", (1,), (1,), offset + 1),
        Value(0, "float32", (1,), (1,), offset + EXTENT // 4),
        Value(0, "float32", (1,), (1,), 0),
    )
    plan = LaunchPlan(
        "3", "cuda:90", (EXTENT + 4 * offset, 4 * 8 * 4), values, (Source("argument", 0, IN),), (),
        {"prepare": (), "forward": (Allocate(1), *steps), "backward": ()}, {"value": OUT}, (), {},
    )  # fmt: skip
    return Checker(plan, (), task, make_inputs(task, case, 3, CPU), 3, CPU)


def test_a_plan_that_keeps_to_its_memory_is_sound() -> None:
    checked = checker(Copy(OUT, IN), offset=3)
    runs, differs = checked.repeats(3)
    assert differs is Differs.NOT
    assert [checked.changed(run) for run in runs] == [(), (), ()]
    assert sum(run.memory.violations() for run in runs) == 0
    assert runs[0].supplied == EXTENT + 12
    assert torch.equal(runs[0].outputs[0], checked.inputs.arguments[0])


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((Copy(OUT, BEHIND),), Differs.BEYOND),
        ((), Differs.UNDEFINED),
        ((Operator("aten.uniform_", "default", ({"value": OUT},), {}, (OUT,)),), Differs.RACE),
    ],
)
def test_why_repeats_differ_is_told(steps: tuple[Step, ...], expected: Differs) -> None:
    assert checker(*steps).repeats(3)[1] is expected


@pytest.mark.parametrize("place", [GAP, BEFORE])
def test_what_lies_between_and_before_elements_must_stay(place: int) -> None:
    for mutates in ((), (0,)):
        checked = checker(Copy(OUT, IN), Fill(place, 7.0), mutates=mutates, offset=3)
        assert checked.changed(checked.run()) == (0,)


def test_elements_may_change_where_the_task_says_so() -> None:
    steps = (Copy(OUT, IN), Fill(IN, 7.0))
    assert checker(*steps).changed(checker(*steps).run()) == (0,)
    checked = checker(*steps, mutates=(0,))
    runs, differs = checked.repeats(3)
    assert (checked.changed(runs[0]), differs) == ((), Differs.NOT)
    assert runs[0].outputs[1].unique().tolist() == [7.0]


def test_writes_beyond_a_buffer_are_seen_whatever_they_write() -> None:
    for value in (float("nan"), 0.0, -1.0):
        checked = checker(Copy(OUT, IN), Fill(BEHIND, value))
        runs, _ = checked.repeats(3)
        assert sum(run.memory.violations() for run in runs) >= 2
