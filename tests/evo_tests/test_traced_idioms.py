"""Idioms of honest wrappers that a tracer must not mistake for a breach: numbers as tensors, barriers, the guards of generated code."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evo.records import Configuration, Failure
from evo.tasks.base import Case, Task, TensorSpec
from evo.tracing.plan import Allocate, Fill, Launch, LaunchPlan
from evo.tracing.tracer import Tracer

SOURCE = """
import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x, y, one, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0.0)
    tl.debug_barrier()
    tl.store(y + at, value + tl.load(one), mask=at < n)


def entry(x):
    y = torch.empty_like(x)
    {body}
    return y
"""
LAUNCH = "add_kernel[(1,)](x, y, torch.tensor([1.0], device=x.device), x.numel(), BLOCK=64)"


@pytest.fixture(scope="module")
def tracer() -> Iterator[Tracer]:
    made = Tracer("cuda:90")
    yield made
    made.close()


def traced(tracer: Tracer, body: str) -> LaunchPlan | Failure:
    case = Case("4x8", (TensorSpec((4, 8), "float32"),), 1, 1)
    task = Task("idiom", "", "entry", lambda x: x, (case,), (), (Case("small", case.arguments, 1, 1),), ())
    return tracer.trace(SOURCE.format(body=body), task, case, Configuration())


def test_a_number_made_a_tensor_lies_on_the_device_and_a_barrier_is_no_foreign_code(tracer: Tracer) -> None:
    plan = traced(tracer, LAUNCH)
    assert isinstance(plan, LaunchPlan), plan
    kinds = [type(step) for step in plan.steps["forward"]]
    assert kinds == [Allocate, Allocate, Fill, Launch]
    fill = plan.steps["forward"][2]
    assert isinstance(fill, Fill)
    assert (fill.scalar, plan.values[fill.value].shape) == (1.0, (1,))


def test_a_number_assigned_to_a_part_of_a_tensor_fills_that_part(tracer: Tracer) -> None:
    plan = traced(tracer, f"{LAUNCH}; y[:, -1] = 0; y[1] = torch.tensor(2.5, device=x.device); y[0, 0] = float('-inf')")
    assert isinstance(plan, LaunchPlan), plan
    fills = [step for step in plan.steps["forward"][4:] if isinstance(step, Fill)]
    assert len(fills) == len(plan.steps["forward"][4:]) == 3
    assert [(step.scalar, plan.values[step.value].shape, plan.values[step.value].offset) for step in fills] == [
        (0.0, (4,), 7),
        (2.5, (8,), 8),
        (float("-inf"), (), 0),
    ]


def test_values_from_the_host_stay_refused(tracer: Tracer) -> None:
    found = traced(tracer, f"{LAUNCH}; y[0, :2] = torch.tensor([1.0, 2.0], device=x.device)")
    assert isinstance(found, Failure)
    assert "neither received nor allocated" in found.message


def test_wrappers_as_torch_inductor_and_operator_libraries_write_them_trace(tracer: Tracer) -> None:
    guard = "from torch._C import _cuda_getCurrentRawStream as raw; raw(0)"
    empty = "torch._C._dynamo.guards._empty_strided_cuda((4, 8), (8, 1), torch.float32)"
    plan = traced(tracer, f"{guard}\n    with torch.cuda._DeviceGuard(x.device.index):\n        y = {empty}; {LAUNCH}")
    assert isinstance(plan, LaunchPlan), plan


def test_bytes_taken_for_another_type_are_the_same_tensor(tracer: Tracer) -> None:
    body = LAUNCH.replace("(x, y,", "(triton.reinterpret(x, tl.int32), y,")
    plan = traced(tracer, body)
    assert isinstance(plan, LaunchPlan), plan
    launch = plan.launches[0]
    argument = next(source.value for source in plan.sources if source.kind == "argument")
    assert launch.arguments[0] == {"value": argument}
    assert dict(plan.kernels[launch.kernel].signature)["x"] == "*i32"
