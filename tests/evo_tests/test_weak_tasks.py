"""Tasks made weak on purpose: each known cheat passes one of them and is named with a cure; the tasks of the package are not weak."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from evo.errors import TaskError
from evo.evaluation import weakness
from evo.evaluation.weakness import Bounds, Diagnosis, Finding, Reach, diagnose
from evo.tasks.base import Case, Task, TensorSpec, Tolerance
from evo.tasks.draws import DEFAULT_VARIATIONS, Variation
from evo.tasks.loading import builtin_tasks, load_task

PLAIN_ONLY: frozenset[Variation] = frozenset()
ENOUGH = Bounds(600.0)


def case(name: str, *arguments: TensorSpec | float, count: int = 100) -> Case:
    return Case(name, arguments, bytes=4 * count, flops=count)


def matrices(*shapes: tuple[int, ...], more: tuple[TensorSpec | float, ...] = (), **spec: Any) -> tuple[Case, ...]:
    return tuple(
        case(f"{number}_{'x'.join(map(str, shape))}", TensorSpec(shape, **{"dtype": "float32", **spec}), *more)
        for number, shape in enumerate(shapes)
    )


def made(reference: Callable[..., Any], cases: tuple[Case, ...], held_out: tuple[Case, ...] = (), **options: Any) -> Task:
    """The first cases are small ones, the last is for training."""
    return Task(
        name="made",
        description="",
        entry="made",
        reference=reference,
        training_cases=cases[-1:],
        held_out_cases=tuple(replace(item, name=f"held_out_{item.name}") for item in held_out),
        small_cases=cases[:-1],
        starting_kernels=("def made(): ...\n",),
        **options,
    )


ODD = matrices((3, 7), (5, 129), (16, 64))
"""Shapes that a strong task has."""


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def softmax_mean(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, dim=-1).mean(dim=-1)


def nearly_a_row_maximum(x: torch.Tensor) -> torch.Tensor:
    return x * 1e-6 + 1 + x.abs().amax(dim=-1, keepdim=True)


def half_zero(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, torch.zeros_like(x)])


def hardly_any_input(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(1, x.numel() + 1, dtype=x.dtype, device=x.device).reshape(x.shape) + x * 1e-12


def half_input(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, hardly_any_input(x)])


def add_bias(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return x + bias


def scaled(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x * scale


def hardly_update(x: torch.Tensor) -> None:
    x.add_(1e-12)


def levels(x: torch.Tensor) -> torch.Tensor:
    return torch.round(x * 20).clamp(-100, 100).to(torch.int8)


def vanishing_gradient(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * 2 + 0 * w


def sloppy(x: torch.Tensor) -> torch.Tensor:
    y = torch.exp(x)
    return y if x.dtype == torch.float64 else y.bfloat16().to(x.dtype)


LOOSE = Tolerance(floor_epsilons=1e8)


@dataclass(frozen=True)
class Weak:
    """A cheat, a task that it passes, and a word of the cure."""

    cheat: str
    task: Task
    cure: str


def vector(*sizes: int, **spec: Any) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec((size,), **{"dtype": "float32", **spec}) for size in sizes)


def with_row(distribution: str) -> tuple[Case, ...]:
    shapes = ((3, 7), (5, 129), (16, 64))
    rows = vector(*(columns for _, columns in shapes), distribution=distribution)
    return tuple(case(f"{r}x{c}", TensorSpec((r, c), "float32"), row) for (r, c), row in zip(shapes, rows, strict=True))


def needs_gradient() -> tuple[Case, ...]:
    specs = [TensorSpec(shape, "float32", requires_grad=True) for shape in ((3, 7), (5, 129), (16, 64))]
    return tuple(case(str(spec.numel), spec, spec) for spec in specs)


WIDE = matrices((3, 5000), (2, 7001), (4, 6000), dtype="float16", distribution="uniform", low=0.5)
SMALL_VALUES = matrices((3, 7), (5, 129), (16, 64), scale=0.3)
TILES = matrices((2, 16), (3, 32), (16, 64))

WEAK = (
    Weak("zeros for output 0", made(lambda x: torch.relu(x - 1e4), ODD, variations=PLAIN_ONLY), "another distribution"),
    Weak("zeros for output 0", made(double, ODD, tolerance=LOOSE), "tolerance.floor_epsilons"),
    Weak("zeros for gradient 1", made(vanishing_gradient, needs_gradient(), backward=True), "another distribution"),
    Weak("one constant for output 0", made(softmax_mean, ODD), "another distribution"),
    Weak("a constant per row for output 0", made(nearly_a_row_maximum, ODD, variations=PLAIN_ONLY), "all over a row"),
    Weak("the answer to another seed for output 0", made(hardly_any_input, ODD, variations=PLAIN_ONLY), "larger scale"),
    Weak("half of it, zeros after for output 0", made(half_zero, ODD), "second half"),
    Weak("half of it, stale after for output 0", made(half_input, ODD, variations=PLAIN_ONLY), "second half"),
    Weak("the last column unwritten for output 0", made(lambda x: torch.log(-x.abs() - 1), ODD), "no NaN"),
    Weak("NaN everywhere for output 0", made(lambda x: torch.log(-x.abs() - 1), ODD), "no NaN"),
    Weak("saturated values for output 0", made(double, ODD, tolerance=LOOSE), "tolerance.floor_epsilons"),
    Weak(
        "integers off by the slack for output 0",
        made(levels, ODD, tolerance=Tolerance(integer_slack=1, integer_share=1.0)),
        "tolerance.integer_share",
    ),
    Weak(
        "zeros for output 0", made(levels, ODD, tolerance=Tolerance(integer_slack=100, integer_share=1.0)), "tolerance.integer_slack"
    ),
    Weak("nothing written for argument 0 (updated in place)", made(hardly_update, ODD, mutates=(0,), variations=PLAIN_ONLY), "update"),
    Weak(
        "a copy of argument 0 for output 0",
        made(torch.relu, matrices((3, 7), (5, 129), (16, 64), distribution="uniform"), variations=PLAIN_ONLY),
        "negative",
    ),
    Weak("argument 1 taken as zeros", made(add_bias, with_row("zeros"), variations=DEFAULT_VARIATIONS - {Variation.FILLED}), "normal"),
    Weak("argument 1 taken as ones", made(scaled, with_row("ones"), variations=DEFAULT_VARIATIONS - {Variation.FILLED}), "uniform"),
    Weak("the last column of argument 0 left out", made(lambda x: x.sum(dim=-1), WIDE, variations=PLAIN_ONLY), "few elements"),
    Weak("inputs rounded to TF32", made(torch.exp, ODD, tolerance=Tolerance(ratio=1e6), variations=PLAIN_ONLY), "tolerance.ratio"),
    Weak("inputs rounded to float16", made(torch.exp, ODD, tolerance=Tolerance(ratio=1e6), variations=PLAIN_ONLY), "tolerance.ratio"),
    Weak("inputs rounded to bfloat16", made(sloppy, SMALL_VALUES, variations=PLAIN_ONLY), "accumulate in float32"),
    Weak(
        "right for the shapes of the training cases only",
        made(double, matrices((8, 24), (8, 24), (8, 24)), held_out=matrices((8, 24))),
        "other shapes",
    ),
    Weak("right for multiples of 16 only", made(double, TILES, held_out=matrices((48, 48))), "odd sizes"),
    Weak("right for the declared distribution only", made(double, ODD, variations=PLAIN_ONLY), "variations"),
)  # fmt: skip


def found(task: Task, cheat: str, bounds: Bounds = ENOUGH) -> Finding:
    return next(finding for finding in diagnose(task, bounds).findings if finding.cheat == cheat)


@functools.cache
def diagnosis_of(number: int) -> Diagnosis:
    return diagnose(WEAK[number].task, ENOUGH)


@pytest.mark.parametrize("number", range(len(WEAK)), ids=lambda number: WEAK[number].cheat.replace(" ", "-"))
def test_the_cheat_that_a_task_lets_through_is_named_with_the_cure(number: int) -> None:
    weak = WEAK[number]
    finding = next(item for item in diagnosis_of(number).findings if item.cheat == weak.cheat)
    assert finding.weak, f"stopped by {finding.stopped_by}"
    assert finding.reach is Reach.VERIFICATION
    assert not finding.stopped_by
    assert weak.cure in finding.cure
    assert 0 <= finding.error_ratio <= 1
    assert weak.cheat in finding.text
    assert "\n" not in finding.text


def test_every_cheat_there_is_passes_one_of_these_tasks() -> None:
    def kinds(name: str) -> str:
        for place in (" for output", " for gradient", " for argument"):
            name = name.split(place)[0]
        return name.replace("argument 1", "argument 0")

    tried = {kinds(finding.cheat) for number in range(len(WEAK)) for finding in diagnosis_of(number).findings}
    assert tried == {kinds(weak.cheat) for weak in WEAK}


@pytest.mark.parametrize("name", builtin_tasks())
def test_no_task_of_the_package_is_weak(name: str) -> None:
    task = load_task(name)
    diagnosis = diagnose(task, Bounds(2.0, survivors_only=True))
    assert [finding.text for finding in diagnosis.weaknesses] == []
    assert not diagnosis.unfit
    assert {item.name for item in task.small_cases} <= set(diagnosis.looked_at)


def test_zeros_do_not_pass_a_softmax_whose_values_are_tiny() -> None:
    # The published exploit: over 393,216 columns every value is below any absolute tolerance.
    cases = matrices((1, 393_216), (1, 393_216))
    task = made(lambda x: torch.softmax(x, dim=-1), cases, variations=PLAIN_ONLY)
    weak = {finding.cheat for finding in diagnose(task, replace(ENOUGH, survivors_only=True)).weaknesses}
    assert not {cheat for cheat in weak if cheat.endswith("for output 0")}
    assert "right for the shapes of the training cases only" in weak


def test_variations_that_the_task_allows_stop_what_its_distribution_lets_through() -> None:
    assert not found(made(add_bias, with_row("zeros")), "argument 1 taken as zeros").weak
    assert not found(made(double, ODD), "right for the declared distribution only").weak


def test_an_output_that_is_a_copy_by_right_is_no_finding() -> None:
    finding = found(made(lambda x: x.clone(), ODD), "a copy of argument 0 for output 0")
    assert not finding.weak
    assert not diagnose(made(lambda x: x.clone(), ODD), ENOUGH).weaknesses


def test_precision_that_the_task_allows_or_its_outputs_hide_is_no_finding() -> None:
    def named(task: Task) -> set[str]:
        return {finding.cheat for finding in diagnose(task, ENOUGH).findings if finding.cheat.startswith("inputs rounded")}

    assert named(made(torch.exp, ODD)) == {f"inputs rounded to {kind}" for kind in ("TF32", "float16", "bfloat16")}
    assert named(made(torch.exp, ODD, tolerance=Tolerance(products="tf32"))) == {"inputs rounded to bfloat16"}
    assert named(made(lambda x: torch.exp(x).bfloat16() if x.dtype == torch.float32 else torch.exp(x), ODD)) == set()


def test_a_held_out_case_of_another_shape_stops_hard_coded_shapes_there() -> None:
    task = made(double, matrices((8, 24), (8, 24), (8, 24)), held_out=matrices((5, 7)))
    finding = found(task, "right for the shapes of the training cases only")
    assert finding.reach is Reach.SEARCH
    assert finding.weak
    assert "held_out_0_5x7" in finding.stopped_by


def test_a_case_that_lets_zeros_pass_is_told_though_others_stop_them() -> None:
    scaled_down = (*matrices((3, 7)), *matrices((5, 129), (4, 4))[1:])
    task = made(lambda x: torch.where(torch.tensor(x.shape[1] == 7), 0 * x, x * 2), scaled_down)
    finding = found(task, "zeros for output 0")
    assert finding.reach is Reach.CASES
    assert not finding.weak
    assert (finding.passed, finding.why) == (("0_3x7",), "that is the expected output there")


def test_of_several_outputs_the_one_that_nobody_looks_at_is_named() -> None:
    task = made(lambda x: (x * 2, torch.softmax(x, -1).sum(-1)), ODD)
    weak = {finding.cheat for finding in diagnose(task, ENOUGH).weaknesses}
    assert "one constant for output 1" in weak
    assert not any("output 0" in cheat for cheat in weak)


def test_a_parameter_that_does_not_show_is_named() -> None:
    def layer(parameters: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return x * 2 + parameters["bias"]

    plain = DEFAULT_VARIATIONS - {Variation.FILLED}
    task = made(layer, ODD, form="module", parameters={"bias": TensorSpec((), "float32", "zeros")}, variations=plain)
    assert "parameter bias" in found(task, "parameter bias taken as zeros").cure


def test_a_statistic_that_tests_nothing_lets_zeros_pass() -> None:
    seeds = tuple(case(f"{n}", TensorSpec((n, 3), "float32"), TensorSpec((1,), "int64", "integers", high=1e6)) for n in (3, 5))
    task = made(lambda x, seed: torch.rand_like(x), seeds, oracle="stochastic", statistic=lambda arguments, outputs: [])
    assert found(task, "zeros for output 0").weak
    assert not any("another seed" in finding.cheat for finding in diagnose(task, ENOUGH).findings)


def test_cases_too_large_to_look_at_are_named_and_small_ones_always_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weakness, "_memory_bytes", lambda device: 64 << 30)  # whatever else is in this machine's memory
    shapes = (1 << 13, 1 << 13), (1 << 20, 1 << 20)
    large = tuple(Case(f"{r}", (TensorSpec((r, c), "float32"),), bytes=8 * r * c, flops=r * c) for r, c in shapes)
    task = replace(made(double, ODD, held_out=large), training_cases=(*ODD[-1:], *large))
    diagnosis = diagnose(task, Bounds(0.5))
    reasons = dict(diagnosis.skipped)
    assert reasons["8192"].endswith("s here")
    assert "GiB" in reasons["1048576"]
    assert {ODD[0].name, ODD[1].name} <= set(diagnosis.looked_at)


def test_a_reference_that_fails_on_a_later_case_is_the_tasks_mistake() -> None:
    def picky(x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] == 129:
            raise KeyError("no such size")
        return x * 2

    with pytest.raises(TaskError, match=r"reference on case 1_5x129.*no such size"):
        diagnose(made(picky, ODD), ENOUGH)


@pytest.mark.parametrize("survivors_only", [False, True])
def test_a_reference_that_fails_on_a_variation_it_allows_is_the_tasks_mistake(survivors_only: bool) -> None:
    def only_small(x: torch.Tensor) -> torch.Tensor:
        if x.numel() and float(x.abs().max()) > 50:
            raise ArithmeticError("too large")
        return 0 * x  # so that a cheat lives until then

    with pytest.raises(TaskError, match=r"reference on case 1_5x129, large inputs.*too large.*variation that the task allows"):
        diagnose(made(only_small, ODD), replace(ENOUGH, survivors_only=survivors_only))


def test_what_no_held_out_case_was_asked_about_is_not_said_to_pass_verification() -> None:
    task = made(double, ODD, held_out=matrices((5, 7)), tolerance=LOOSE)
    assert found(task, "zeros for output 0").reach is Reach.VERIFICATION
    assert found(task, "zeros for output 0", replace(ENOUGH, survivors_only=True)).reach is Reach.SEARCH


def test_a_reference_that_its_own_judge_refuses_is_told() -> None:
    def cancelling(x: torch.Tensor) -> torch.Tensor:
        return ((x + 1e8) - 1e8) > 0  # float32 has no room for x beside 1e8

    assert "case" in diagnose(made(cancelling, ODD), ENOUGH).unfit[0]
