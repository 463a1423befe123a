"""Varied inputs break what a kernel may have learned of the declared ones, keep what a declaration means, and are shared by candidates."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from evo.evaluation.base import Effort
from evo.evaluation.draws import choose_draws, suitable_variations
from evo.evaluation.inputs import applicable_variations, make_inputs
from evo.evaluation.judge import Judge
from evo.evaluation.oracle import flatten_outputs
from evo.records import Failure
from evo.tasks.base import Case, Task, TensorSpec, Tolerance
from evo.tasks.draws import DEFAULT_VARIATIONS, Draw, Variation
from evo.tasks.loading import builtin_tasks, load_task


def make_task(*arguments: TensorSpec | int, small: int = 1, **options: object) -> Task:
    cases = [Case(f"case {index}", arguments, bytes=1, flops=1) for index in range(small + 2)]
    return Task(
        "made",
        "",
        "made",
        lambda *a: a[0] + 1,
        (cases[-2],),
        (cases[-1],),
        tuple(cases[:small]),
        ("def made(): ...\n",),
        **options,
    )  # type: ignore[arg-type]


def drawn(spec: TensorSpec, variation: Variation, seed: int = 3) -> torch.Tensor:
    task = make_task(spec, variations=frozenset(Variation))
    first = make_inputs(task, task.small_cases[0], seed, "cpu", variation).arguments[0]
    again = make_inputs(task, task.small_cases[0], seed, "cpu", variation).arguments[0]
    assert torch.equal(first.nan_to_num(), again.nan_to_num())
    assert isinstance(first, torch.Tensor)
    return first


NORMAL = TensorSpec((64, 257), "float32", scale=2.0)
PLAIN = drawn(NORMAL, Variation.PLAIN)


def test_plain_draws_are_the_seeds_own_stream() -> None:
    # Exported fronts draw their inputs themselves, from this very stream.
    expected = torch.randn(64 * 257, generator=torch.Generator().manual_seed(3)) * 2.0
    assert torch.equal(PLAIN, expected.reshape(64, 257))
    half = drawn(replace(NORMAL, dtype="float16", distribution="uniform", low=1.0, high=3.0), Variation.PLAIN)
    uniform = torch.rand(64 * 257, generator=torch.Generator().manual_seed(3)) * 2.0 + 1.0
    assert torch.equal(half, uniform.half().reshape(64, 257))


def test_each_variation_is_what_it_says() -> None:
    x = {variation: drawn(NORMAL, variation) for variation in Variation}
    assert torch.equal(x[Variation.TIMES_3], PLAIN * 3)
    assert torch.equal(x[Variation.TIMES_0_01], PLAIN * 0.01)
    assert torch.equal(x[Variation.POSITIVE], PLAIN.abs())
    assert torch.equal(x[Variation.NEGATED], -PLAIN.abs())
    assert len(x[Variation.CONSTANT].unique()) == 1
    assert 2 <= len(x[Variation.TIES].unique()) <= 4
    assert bool((x[Variation.SORTED].diff(dim=1) >= 0).all())
    assert 0.85 < float((x[Variation.SPARSE] == 0).double().mean()) < 0.95
    zeros = x[Variation.SIGNED_ZEROS]
    assert not zeros.any()
    assert 0.4 < float(torch.signbit(zeros).double().mean()) < 0.6
    assert 100 < float(x[Variation.LARGE].abs().max()) < 300
    assert bool(torch.isfinite(x[Variation.WIDE].square().sum()))
    assert torch.isinf(x[Variation.WIDE].half()).double().mean() > 0.99
    assert torch.isfinite(x[Variation.HUGE]).all()
    assert float(x[Variation.HUGE].abs().max()) > 1e37
    assert float((x[Variation.DENORMAL].abs() < torch.finfo(torch.float32).tiny).double().mean()) > 0.99
    assert float((x[Variation.DENORMAL] != 0).double().mean()) > 0.99


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_all_variations_are_finite_in_every_dtype(dtype: str) -> None:
    for variation in Variation:
        values = drawn(replace(NORMAL, dtype=dtype), variation)
        assert values.dtype == getattr(torch, dtype)
        assert bool(torch.isfinite(values).all()), variation


def test_sums_of_constants_ties_and_sorted_values_are_exact_in_any_order() -> None:
    for variation in (Variation.CONSTANT, Variation.TIES, Variation.SORTED):
        x = drawn(replace(NORMAL, shape=(4, 8192), scale=0.03), variation)
        upward = torch.zeros(4)
        for column in x.T:
            upward += column
        assert torch.equal(upward.double(), x.double().sum(1)), variation


def test_declared_ranges_and_integers_and_fills_keep_their_meaning() -> None:
    probabilities = TensorSpec((4, 100), "float32", "uniform", low=0.1, high=0.9)
    indices = TensorSpec((100,), "int64", "integers", high=7)
    for variation in Variation:
        values = drawn(probabilities, variation)
        assert 0.1 <= float(values.min()) <= float(values.max()) <= 0.9 + 1e-6, variation
        assert torch.equal(drawn(indices, variation), drawn(indices, Variation.PLAIN))
        ones = drawn(TensorSpec((50,), "float32", "ones"), variation)
        assert (len(ones.unique()) > 1) == (variation is Variation.FILLED)
    assert len(drawn(probabilities, Variation.CONSTANT).unique()) == 1


def test_strided_offset_and_shared_memory_are_varied_in_place() -> None:
    strided = drawn(TensorSpec((5, 9), "float16", strides=(20, 2), offset=3), Variation.SORTED)
    assert (strided.stride(), strided.storage_offset()) == ((20, 2), 3)
    assert bool((strided.diff(dim=1) >= 0).all())
    expanded = drawn(TensorSpec((5, 9), "float32", strides=(0, 1)), Variation.SORTED)
    assert torch.equal(expanded[0], expanded[4])
    assert drawn(TensorSpec((0, 9), "float32"), Variation.SORTED).shape == (0, 9)


def test_only_variations_that_change_something_apply() -> None:
    uniform = make_task(TensorSpec((4,), "float32", "uniform"), 7)
    assert applicable_variations(uniform, uniform.small_cases[0]) == (Variation.CONSTANT, Variation.TIES, Variation.SORTED)
    integers = make_task(TensorSpec((4,), "int32", "integers", high=3))
    assert applicable_variations(integers, integers.small_cases[0]) == ()
    normal = make_task(NORMAL)
    assert set(applicable_variations(normal, normal.small_cases[0])) == DEFAULT_VARIATIONS - {Variation.PLAIN, Variation.FILLED}
    half = replace(make_task(NORMAL, variations=frozenset(Variation)), tolerance=Tolerance(products="float16"))
    assert not {Variation.WIDE, Variation.HUGE, Variation.DENORMAL} & set(applicable_variations(half, half.small_cases[0]))
    narrow = make_task(NORMAL, variations=frozenset({Variation.TIES}))
    assert applicable_variations(narrow, narrow.small_cases[0]) == (Variation.TIES,)


@pytest.mark.parametrize("name", builtin_tasks())
def test_compiled_kernels_meet_every_variation_on_small_cases_and_some_on_the_others(name: str) -> None:
    task = load_task(name)
    for case in task.cases:
        for effort in Effort:
            draws = choose_draws(task, case, effort, True)
            assert draws == choose_draws(task, case, effort, True), "candidates of a task face the same draws"
            assert draws[0].variation is Variation.PLAIN
            assert len({draw.seed for draw in draws}) == len(draws)
            varied = {draw.variation for draw in draws[1:]}
            if case in task.small_cases:
                assert varied == set(applicable_variations(task, case))
            else:
                count = 2 if case in task.held_out_cases else 1 if effort is Effort.SEARCH else 3
                assert len(varied) == min(count, len(applicable_variations(task, case))), "integers do not vary"
        seen = {draw.seed for draw in choose_draws(task, case, Effort.SEARCH, True)}
        assert not seen & {draw.seed for draw in choose_draws(task, case, Effort.VERIFY, True)}


@pytest.mark.parametrize("name", builtin_tasks())
def test_interpreted_search_draws_few_and_verification_deals_all_out(name: str) -> None:
    task = load_task(name)
    search = [choose_draws(task, case, Effort.SEARCH, False) for case in task.small_cases]
    assert max(map(len, search)) <= 2
    varied = [draw.variation for draws in search for draw in draws[1:]]
    assert len(set(varied)) == len(varied)
    dealt = {draw.variation for case in task.small_cases for draw in choose_draws(task, case, Effort.VERIFY, False)}
    every = {item for case in task.small_cases for item in suitable_variations(task, case, False)}
    assert every <= dealt


def test_a_learned_distribution_is_caught_and_the_message_names_the_variation() -> None:
    task, judge = load_task("softmax"), Judge()
    case = task.case("2x1000_bfloat16")

    def failures(kernel: object) -> set[Variation]:
        caught = set()
        for draw in choose_draws(task, case, Effort.SEARCH, True):
            x = make_inputs(task, case, draw.seed, "cpu", draw.variation).arguments[0].float()
            result = judge.judge(task, case, draw, flatten_outputs(kernel(x).bfloat16()))  # type: ignore[operator]
            if isinstance(result, Failure):
                assert f"case 2x1000_bfloat16, {draw.variation} inputs: output 0" in result.message or not draw.words
                caught.add(draw.variation)
        return caught

    assert failures(lambda x: torch.softmax(x, -1)) == set()
    assert {Variation.LARGE, Variation.HUGE} <= failures(lambda x: x.exp() / x.exp().sum(-1, keepdim=True))
    rises = failures(
        lambda x: torch.softmax(x - x.clamp(min=0).amax(-1, keepdim=True), -1).where(x.amax(-1, keepdim=True) > 0, 0)
    )
    assert Variation.NEGATED in rises
    assert Variation.PLAIN not in rises
    constant = failures(lambda x: torch.softmax(x, -1) if x.std() > 0 else torch.zeros_like(x))
    assert {Variation.CONSTANT, Variation.SIGNED_ZEROS} <= constant
    assert Variation.PLAIN not in constant


def test_a_mean_that_is_taken_for_zero_and_a_gain_left_out_are_caught() -> None:
    def centred(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(-1, keepdim=True)) * gain

    task = replace(make_task(TensorSpec((3, 100_000), "float16"), TensorSpec((100_000,), "float16", "ones")), reference=centred)
    case, judge = task.small_cases[0], Judge()

    def passes(kernel: object, variation: Variation) -> bool:
        x, gain = make_inputs(task, case, 5, "cpu", variation).arguments
        outputs = flatten_outputs(kernel(x, gain))  # type: ignore[operator]
        return not isinstance(judge.judge(task, case, Draw(5, variation), outputs), Failure)

    assert all(passes(centred, variation) for variation in Variation)
    assert passes(lambda x, gain: x - x.mean(-1, keepdim=True), Variation.PLAIN)
    assert not passes(lambda x, gain: x - x.mean(-1, keepdim=True), Variation.FILLED)
    assert not passes(lambda x, gain: x * gain, Variation.POSITIVE)


def test_the_interpreter_is_given_no_subnormal_bfloat16() -> None:
    for dtype, interpreted in (("bfloat16", False), ("float16", True)):
        task = make_task(replace(NORMAL, dtype=dtype))
        assert Variation.DENORMAL in suitable_variations(task, task.small_cases[0], True)
        assert (Variation.DENORMAL in suitable_variations(task, task.small_cases[0], False)) == interpreted
