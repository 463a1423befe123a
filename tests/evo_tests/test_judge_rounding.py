"""Where terms cancel all over, what rounding leaves is no error of the kernel; anything larger still is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from evo.evaluation.inputs import make_inputs
from evo.evaluation.judge import Judge
from evo.evaluation.oracle import Oracle, flatten_outputs
from evo.evaluation.rounding import NATIVE, Perturbing, Recording
from evo.evaluation.tolerance import Verdict, compare
from evo.records import Failure, Status
from evo.tasks.base import Task, TensorSpec
from evo.tasks.draws import Draw, Variation
from evo.tasks.loading import load_task
from tests.evo_tests.test_judge_oracle import make_task

EPSILON = 2.0**-23


def judged(task: Task, case: str, draw: Draw, outputs: torch.Tensor | tuple[torch.Tensor, ...]) -> Verdict | Failure:
    return Judge().judge(task, task.case(case), draw, flatten_outputs(outputs))


def arguments(task: Task, case: str, draw: Draw) -> tuple[torch.Tensor, ...]:
    return make_inputs(task, task.case(case), draw.seed, "cpu", draw.variation).arguments


def layer_norm_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float, mean_taken_off: bool = True
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As a kernel computes it that divides as GPUs do, not to the last bit, which shows where all terms are equal."""
    share = torch.tensor((1.0 + EPSILON) / x.shape[-1], dtype=torch.float32)
    centred = x.float() - x.float().sum(-1, keepdim=True) * share
    scale = torch.rsqrt((centred.square().sum(-1, keepdim=True) * share) + eps)
    normal, inner = centred * scale, dy.float() * weight.float()
    mean = inner.sum(-1, keepdim=True) * share if mean_taken_off else 0.0
    dx = scale * (inner - mean - normal * ((inner * normal).sum(-1, keepdim=True) * share))
    return dx.bfloat16(), (dy.float() * normal).sum(0).bfloat16(), dy.float().sum(0).bfloat16()


@pytest.mark.parametrize("seed", range(4))
def test_what_is_left_of_equal_terms_passes_and_a_forgotten_mean_does_not(seed: int) -> None:
    task, draw = load_task("layer_norm_backward"), Draw(seed, Variation.CONSTANT)
    dy, x, weight, eps = arguments(task, "37x130", draw)
    honest = layer_norm_backward(dy, x, weight, float(eps))
    assert honest[0].count_nonzero() or honest[1].count_nonzero(), "or this shows nothing"
    verdict = judged(task, "37x130", draw, honest)
    assert isinstance(verdict, Verdict), verdict.message
    refused = judged(task, "37x130", draw, layer_norm_backward(dy, x, weight, float(eps), mean_taken_off=False))
    assert isinstance(refused, Failure)
    assert refused.status is Status.WRONG_VALUES


def attention_backward(
    dy: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cut: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As a kernel computes it in three parts: the products of dy and v are summed in another order for each, and the weights come from
    a log-sum-exp. `cut` mantissa bits are lost in those products."""
    length, dim = q.shape[-2:]
    q32, k32, v32, dy32 = (item.float() for item in (q, k, v, dy))
    future = torch.ones(length, length, dtype=torch.bool).triu_(1)
    scores = ((q32 @ k32.transpose(-1, -2)) * dim**-0.5).masked_fill(future, float("-inf"))
    once = dy32 @ v32.transpose(-1, -2)
    again: torch.Tensor = sum(dy32[..., at : at + 8] @ v32[..., at : at + 8].transpose(-1, -2) for at in range(0, dim, 8))  # type: ignore[assignment]
    if cut:
        again = (again.view(torch.int32) & -(1 << cut)).view(torch.float32)
    weights = torch.exp(scores - torch.logsumexp(scores, -1, keepdim=True))
    delta = (torch.softmax(scores, -1) * once).sum(-1, keepdim=True)
    dscores = weights * (again - delta) * dim**-0.5
    return (
        (dscores.bfloat16().float() @ k32).bfloat16(),
        (dscores.bfloat16().float().transpose(-1, -2) @ q32).bfloat16(),
        (weights.bfloat16().float().transpose(-1, -2) @ dy32).bfloat16(),
    )


def test_gradients_of_saturated_softmaxes_pass_and_lost_precision_does_not() -> None:
    task, draw = load_task("attention_backward"), Draw(22, Variation.TIMES_3)  # in which a row is saturated
    arguments_ = tuple(TensorSpec((1, 1, 300, 32), "bfloat16") for _ in range(4))
    task = dataclasses.replace(task, small_cases=(dataclasses.replace(task.small_cases[0], name="long", arguments=arguments_),))
    dy, q, k, v = arguments(task, "long", draw)
    verdict = judged(task, "long", draw, attention_backward(dy, q, k, v))
    assert isinstance(verdict, Verdict), verdict.message
    refused = judged(task, "long", draw, attention_backward(dy, q, k, v, cut=18))
    assert isinstance(refused, Failure), "products with five bits"


def flash_attention_backward(
    dy: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, short: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As published (Dao, 2023): the forward pass keeps its result in bfloat16, from which a sum of each row is taken. `short`: one of the
    keys is left out of that sum's result."""
    dim, length = q.shape[-1], q.shape[-2]
    q32, k32, v32, dy32 = (item.float() for item in (q, k, v, dy))
    scores = (q32 @ k32.transpose(-1, -2)) * dim**-0.5
    scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu_(1), float("-inf"))
    largest = scores.amax(-1, keepdim=True)
    powers = torch.exp(scores - largest)
    total = powers.sum(-1, keepdim=True)
    y = ((powers.bfloat16().float() @ v32) / total).bfloat16().float()
    if short:
        y = y - (powers[..., :1] / total) * v32[..., :1, :]
    weights = torch.exp(scores - largest - torch.log(total))
    dscores = (weights * (dy32 @ v32.transpose(-1, -2) - (dy32 * y).sum(-1, keepdim=True))).bfloat16().float()
    return (
        ((dscores @ k32) * dim**-0.5).bfloat16(),
        ((dscores.transpose(-1, -2) @ q32) * dim**-0.5).bfloat16(),
        (weights.bfloat16().float().transpose(-1, -2) @ dy32).bfloat16(),
    )


@pytest.mark.parametrize("seed", [6, 19, 32, 97])  # of those in which one row's error is many times the reference's
def test_flash_attention_as_it_is_published_passes(seed: int) -> None:
    task = load_task("attention_backward")
    for case in task.small_cases:
        given = arguments(task, case.name, Draw(seed))
        verdict = judged(task, case.name, Draw(seed), flash_attention_backward(*given))
        assert isinstance(verdict, Verdict), verdict.message
    refused = judged(task, case.name, Draw(seed), flash_attention_backward(*given, short=True))
    assert isinstance(refused, Failure)


def test_a_row_in_which_the_reference_is_exact_by_luck_is_judged_by_how_exact_it_usually_is() -> None:
    def chained(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return (left.float() @ right.float()).to(left.dtype).float() @ right.float()

    def reference(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return (left @ right) @ right if left.dtype == torch.float64 else chained(left, right)

    task = make_task(reference, TensorSpec((40, 64, 64), "bfloat16"), TensorSpec((40, 64, 64), "bfloat16"))
    case, oracle, draw = task.small_cases[0], Oracle(), Draw(3)
    known = oracle.with_rounding(task, case, draw)
    assert known is not None
    lucky = known.reference.tensors[0].clone()
    lucky[7, 3] = known.exact.tensors[0][7, 3].to(lucky.dtype)
    once = dataclasses.replace(known, reference=flatten_outputs(lucky), rounding=())
    honest = known.reference
    assert isinstance(compare(honest, once, task.tolerance, 64), Failure)
    assert isinstance(compare(honest, dataclasses.replace(once, rounding=known.rounding), task.tolerance, 64), Verdict)
    error = honest.tensors[0] - known.exact.tensors[0]
    coarse = flatten_outputs((known.exact.tensors[0] + 5 * error).to(lucky.dtype))
    assert isinstance(compare(coarse, known, task.tolerance, 64), Failure)


def test_only_what_rounds_is_perturbed_and_always_in_the_same_way() -> None:
    x = torch.linspace(-3, 4, 40, dtype=torch.float64).reshape(5, 8)

    def compute() -> list[torch.Tensor]:
        moved = torch.cat([x.t().contiguous(), x.t().clone()]).index_select(0, torch.tensor([3, 1]))
        inside = x.clone()
        inside[1:3] = x[3:5]
        inside.mul_(3.0)
        return [moved, x.amax(-1), torch.where(x > 0, x, -x), inside, x.sum(-1), x @ x.t()]

    def results() -> list[torch.Tensor]:
        with Recording() as recording:
            compute()
        with Perturbing({torch.float64: EPSILON}, 7, recording.decisions):
            return compute()

    moved, largest, chosen, inside, summed, product = results()
    assert torch.equal(moved, x.t()[[3, 1]])
    assert torch.equal(largest, x.amax(-1))
    assert torch.equal(chosen, x.abs())
    for got, exact in ((inside, 3 * torch.cat([x[:1], x[3:5], x[3:5]])), (summed, x.sum(-1)), (product, x @ x.t())):
        off = ((got - exact) / exact).abs()
        assert 0 < off.max() <= EPSILON * 1.01
        assert len(set(off.flatten().tolist())) == off.numel(), "each element by itself"
    assert all(torch.equal(a, b) for a, b in zip(results(), [moved, largest, chosen, inside, summed, product], strict=True))
    infinite = torch.tensor([float("inf"), 0.0], dtype=torch.float64)
    with Perturbing({torch.float64: EPSILON}, 7, ()):
        twice = infinite * 2
    assert torch.equal(twice, infinite)


def test_a_copy_in_fewer_bits_rounds_and_one_in_more_does_not() -> None:
    x = torch.linspace(-3, 4, 4000)
    with Perturbing(NATIVE, 7, ()):
        short = x.to(torch.bfloat16)
        wide = short.to(torch.float32)
    assert torch.equal(wide, short.float())
    moved = (short != x.to(torch.bfloat16)).float().mean()
    assert 0.2 < moved < 0.8, "to a neighbour, or not"
    assert ((wide - x).abs() <= 3 * 2.0**-8 * x.abs()).all()


def positions(x: torch.Tensor) -> torch.Tensor:
    """Enlarged by half, each element from the nearest one; positions are computed."""
    at = torch.arange(x.shape[-1] * 3 // 2, dtype=x.dtype) * (2 / 3)
    return x[..., at.floor().long()] * 2


def window(x: torch.Tensor) -> torch.Tensor:
    at = torch.arange(x.shape[-1], dtype=x.dtype)
    return x @ ((at[:, None] - at).abs() <= 3).to(x.dtype)


def routed(x: torch.Tensor) -> torch.Tensor:
    values, places = torch.softmax(x, -1).topk(4, -1)
    return torch.zeros_like(x).scatter(-1, places, values / values.sum(-1, keepdim=True))


def stepped(x: torch.Tensor) -> torch.Tensor:
    scale = x.abs().amax(-1, keepdim=True) * (1 / 127)
    return torch.round(x / scale + 0.5) * scale


@pytest.mark.parametrize(
    ("reference", "variation"),
    [
        (positions, Variation.PLAIN),
        (window, Variation.PLAIN),
        (routed, Variation.TIES),
        (stepped, Variation.CONSTANT),
    ],
)
def test_what_a_computation_decides_is_no_matter_of_chance(
    reference: Callable[[torch.Tensor], torch.Tensor], variation: Variation
) -> None:
    task, draw = make_task(reference, TensorSpec((8, 48), "float32")), Draw(11, variation)
    right = reference(arguments(task, "only", draw)[0])
    assert isinstance(judged(task, "only", draw, right), Verdict)
    assert isinstance(judged(task, "only", draw, right * 1.001), Failure)


def test_a_failure_stands_where_the_reference_cannot_round_by_chance() -> None:
    def checked(x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float64 and abs(torch.softmax(x, -1).sum(-1).numpy() - 1).max() > 1e-12:
            raise ValueError("these are no probabilities")
        return x.sum(-1)

    def sparse(x: torch.Tensor) -> torch.Tensor:
        doubled: torch.Tensor = (x.to_sparse() * 2).to_dense()
        return doubled

    for reference in (checked, sparse):
        task = make_task(reference, TensorSpec((4, 16), "float32"))
        wrong = 1.01 * reference(arguments(task, "only", Draw(3))[0])
        assert isinstance(judged(task, "only", Draw(3), wrong), Failure)


def test_a_reference_whose_sizes_depend_on_values_is_rounded_a_known_number_of_times() -> None:
    calls = []

    def distinct(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        found: torch.Tensor = (x * 3).unique()  # type: ignore[no-untyped-call]
        return found

    task, oracle = make_task(distinct, TensorSpec((4, 16), "float32")), Oracle()
    known = oracle.with_rounding(task, task.small_cases[0], Draw(3, Variation.TIES))
    assert known is not None
    assert known.rounding == (None,), "rounding tells equal values apart"
    count = len(calls)
    oracle.with_rounding(task, task.small_cases[0], Draw(3, Variation.TIES))
    assert len(calls) == count, "what is not known is not asked again"
