"""Planted faults: each kind is caught on every task where it makes a difference, and an error of one unit in the last place is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from evo.evaluation.base import Effort
from evo.evaluation.draws import choose_draws
from evo.evaluation.inputs import make_inputs
from evo.evaluation.judge import Judge
from evo.evaluation.oracle import Outputs, compute_outputs, flatten_outputs
from evo.evaluation.tolerance import Verdict
from evo.records import Failure
from evo.tasks.base import Case, Task, TensorSpec
from evo.tasks.draws import Draw, Variation
from evo.tasks.loading import builtin_tasks, load_task

Fault = Callable[[torch.Tensor], torch.Tensor]


def nudged(x: torch.Tensor) -> torch.Tensor:
    """One unit in the last place up or down, at every other element."""
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32}[x.element_size()]
    steps = (torch.arange(x.numel()) % 3 - 1).to(bits).reshape(x.shape)
    plain = torch.isfinite(x) & (x != 0) & (x.abs() < torch.finfo(x.dtype).max * 0.9)
    return torch.where(plain, (x.view(bits) + steps).view(x.dtype), x)


def at(place: int, value: float) -> Fault:
    def put(x: torch.Tensor) -> torch.Tensor:
        changed = x.clone()
        changed.view(-1)[place % x.numel()] = value
        return changed

    return put


def one_row(x: torch.Tensor) -> torch.Tensor:
    rows = x.reshape(-1, x.shape[-1]).clone()
    rows[-1] = rows[0]
    return rows.reshape(x.shape)


def last_column(x: torch.Tensor) -> torch.Tensor:
    changed = x.clone()
    changed[..., -1] = 0
    return changed


FAULTS: dict[str, Fault] = {
    "zeros": torch.zeros_like,
    "constant": lambda x: torch.full_like(x, float(x.double().nan_to_num(0, 0, 0).mean())),
    "one row wrong": one_row,
    "last column unwritten": last_column,
    "shifted by one": lambda x: x.roll(1, -1),
    "magnitudes": torch.abs,
    "unscaled": lambda x: x * 2,
    "one NaN": at(7, float("nan")),
    "one infinity": at(7, float("inf")),
}


def largest(task: Task) -> Case:
    return max(task.small_cases, key=lambda case: case.bytes)


def honest(task: Task, case: Case, draw: Draw) -> Outputs:
    return compute_outputs(task, make_inputs(task, case, draw.seed, "cpu", draw.variation))


def changed(outputs: Outputs, fault: Fault) -> Outputs:
    """Every floating-point output with the fault planted in it."""
    return Outputs(outputs.structure, tuple(fault(item) if item.dtype.is_floating_point else item for item in outputs.tensors))


def shows(task: Task, fault: Fault) -> bool:
    """Whether it changes anything: magnitudes of what is positive, or one row of one, are no fault."""
    outputs = honest(task, largest(task), Draw(0))
    return any(not torch.equal(a, b) for a, b in zip(outputs.tensors, changed(outputs, fault).tensors, strict=True))


def caught(task: Task, fault: Fault) -> set[tuple[str, str]]:
    """(variation, last word of the signature) of the draws of a search on which the fault fails."""
    case, judge, found = largest(task), Judge(), set()
    for draw in choose_draws(task, case, Effort.SEARCH, True):
        verdict = judge.judge(task, case, draw, changed(honest(task, case, draw), fault))
        if isinstance(verdict, Failure):
            found.add((draw.variation.value, verdict.signature.split(":")[-1]))
    return found


NOT_AS_A_WHOLE = {
    *{"quantize_rows", "quantize_groups", "quantize_int4"},  # whose integers are faulted below
    *{"argmax", "histogram"},  # which have integers alone
    "dropout",  # whose values are random
}


LONG = {
    "batch_norm",
    "depthwise_conv2d",
    "linear_attention",
    "max_pool2d",
    "paged_attention",
    "selective_scan",
    "sliding_window_attention",
}
"""Their references take seconds for each computation that rounds by chance."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in builtin_tasks() if name not in NOT_AS_A_WHOLE],
)
def test_planted_faults_are_caught_on_plain_inputs_already(name: str) -> None:
    task = load_task(name)
    for fault, make in FAULTS.items():
        if shows(task, make):
            assert "plain" in {variation for variation, _ in caught(task, make)}, fault
    kinds = {kind for _, kind in caught(task, FAULTS["one NaN"])}
    assert kinds == {"nan_or_inf"}
    assert "zeros" in {kind for _, kind in caught(task, FAULTS["zeros"])}


@pytest.mark.parametrize("name", builtin_tasks())
def test_the_reference_and_one_unit_in_the_last_place_pass_under_all_variations(name: str) -> None:
    assert caught(load_task(name), lambda x: x) == set()
    assert caught(load_task(name), nudged) == set()


@pytest.mark.parametrize("name", builtin_tasks())
def test_outputs_of_other_inputs_fail(name: str) -> None:
    task, judge = load_task(name), Judge()
    case = largest(task)
    verdict = judge.judge(task, case, Draw(3), honest(task, case, Draw(99)))
    assert isinstance(verdict, Failure)


def test_faults_of_integer_outputs_are_caught() -> None:
    task, judge = load_task("quantize_rows"), Judge()
    case = largest(task)
    levels, scales = honest(task, case, Draw(3)).tensors
    faults: dict[str, Any] = {
        "zeros": (levels * 0, scales), "one row wrong": (one_row(levels), scales), "last column unwritten": (last_column(levels), scales),
        "shifted by one": (levels.roll(1, -1), scales), "magnitudes": (levels.abs(), scales), "unscaled": (levels, scales * 127),
        "one scale": (levels, at(3, float(scales[3]) * 1.01)(scales)), "off by one": (levels + 1, scales),
        "one NaN": (levels, at(3, float("nan"))(scales)),
    }  # fmt: skip
    assert isinstance(judge.judge(task, case, Draw(3), flatten_outputs((levels, scales))), Verdict)
    for name, outputs in faults.items():
        assert isinstance(judge.judge(task, case, Draw(3), flatten_outputs(outputs)), Failure), name


def test_infinity_for_nan_and_nan_for_infinity_fail() -> None:
    spec = TensorSpec((4, 100), "float32")
    cases = [Case(name, (spec,), bytes=1, flops=1) for name in ("small", "training")]
    task = Task("roots", "", "f", torch.sqrt, (cases[1],), (), (cases[0],), ("def f(): ...\n",))
    (y,) = honest(task, cases[0], Draw(0)).tensors
    assert y.isnan().any()
    judge = Judge()
    for fault in (y.nan_to_num(float("inf")), y.nan_to_num(0.0), torch.full_like(y, float("nan")), y.abs().fill_(float("inf"))):
        assert isinstance(judge.judge(task, cases[0], Draw(0), flatten_outputs(fault)), Failure)
    assert isinstance(judge.judge(task, cases[0], Draw(0), flatten_outputs(y)), Verdict)


def test_sixteen_bits_inside_fail_where_the_task_is_float32() -> None:
    task, judge = load_task("softmax"), Judge()
    case = task.case("3x7_float32")
    failed = set()
    for draw in choose_draws(task, case, Effort.SEARCH, True):
        x = make_inputs(task, case, draw.seed, "cpu", draw.variation).arguments[0]
        for dtype in (torch.float16, torch.bfloat16):
            verdict = judge.judge(task, case, draw, flatten_outputs(torch.softmax(x.to(dtype), -1).float()))
            if isinstance(verdict, Failure):
                failed.add((draw.variation, dtype))
    assert {(Variation.PLAIN, torch.float16), (Variation.PLAIN, torch.bfloat16)} <= failed
