"""Policies of the judge: precision of products, strides, special values, complex and random dtypes, memory, gradients, aliasing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from evo.errors import TaskError
from evo.evaluation.aliasing import aliasing_failure, plan_sharing, reference_sharing
from evo.evaluation.inputs import differentiable_places, make_inputs
from evo.evaluation.judge import Judge, arithmetic
from evo.evaluation.oracle import Expected, Oracle, flatten_outputs
from evo.evaluation.tolerance import Arithmetic, Verdict, compare
from evo.records import Failure, Stage, Status
from evo.tasks.base import Case, Task, TensorSpec, Tolerance
from evo.tasks.draws import Draw, Variation
from evo.tasks.loading import check_task, load_task
from evo.tasks.text import task_text
from evo.tracing.plan import LaunchPlan, Source, Value


def make_task(reference: Callable[..., Any], *arguments: TensorSpec | int, **options: Any) -> Task:
    cases = [Case(name, arguments, bytes=1, flops=1) for name in ("small", "training")]
    kernel = ("def made(): ...\n",)
    return Task("made", "", "made", reference, (cases[1],), (), (cases[0],), kernel, **options)


def rounded(x: torch.Tensor, bits: int, cut: bool = False) -> torch.Tensor:
    """float32 with `bits` of its 23 mantissa bits; cut as tensor cores cut float32 to TF32, or rounded to the nearest."""
    drop = 23 - bits
    raised = x.view(torch.int32) if cut else x.view(torch.int32) + (1 << (drop - 1))
    return (raised & ~((1 << drop) - 1)).view(torch.float32)


def split_k(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(a.shape[0], b.shape[1])
    for left, right in zip(a.chunk(16, dim=1), b.chunk(16, dim=0), strict=True):
        total += left @ right
    return total


PRODUCT = (TensorSpec((48, 4096), "float32"), TensorSpec((4096, 40), "float32"))
KERNELS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "split-K": split_k,
    "tf32 cut": lambda a, b: rounded(a, 10, cut=True) @ rounded(b, 10, cut=True),
    "tf32": lambda a, b: rounded(a, 10) @ rounded(b, 10),
    "float16": lambda a, b: a.half().float() @ b.half().float(),
    "bfloat16": lambda a, b: a.bfloat16().float() @ b.bfloat16().float(),
    "float16 sums": lambda a, b: split_k(a, b).half().float(),
}
PASS = {
    "float32": {"split-K"},
    "tf32": {"split-K", "tf32 cut", "tf32", "float16"},  # float16 has TF32's bits: only the range tells them apart
    "float16": {"split-K", "tf32 cut", "tf32", "float16"},
    "bfloat16": set(KERNELS),
}


@pytest.mark.parametrize("products", PASS)
def test_products_of_float32_may_be_as_coarse_as_the_task_says_and_no_coarser(products: str) -> None:
    task = make_task(torch.matmul, *PRODUCT, tolerance=Tolerance(products=products))  # type: ignore[arg-type]
    judge, case = Judge(), task.small_cases[0]
    for variation in (Variation.PLAIN, Variation.POSITIVE, Variation.TIMES_0_01):
        a, b = make_inputs(task, case, 1, "cpu", variation).arguments
        verdicts = {
            name: judge.judge(task, case, Draw(1, variation), flatten_outputs(kernel(a, b))) for name, kernel in KERNELS.items()
        }
        passed = {name for name, verdict in verdicts.items() if isinstance(verdict, Verdict)}
        # Sums that all have one sign average the rounding of operands away, so more may pass there.
        assert passed >= PASS[products], variation
        if variation is Variation.PLAIN:
            assert passed - {"float16 sums"} == PASS[products] - {"float16 sums"}
        if products == "float32":
            assert passed == {"split-K"}, variation


def test_where_tf32_is_allowed_the_range_of_float16_gives_it_away() -> None:
    task = make_task(torch.matmul, *PRODUCT, tolerance=Tolerance(products="tf32"), variations=frozenset(Variation))
    case = task.small_cases[0]
    draw = Draw(2, Variation.WIDE)
    a, b = make_inputs(task, case, 2, "cpu", draw.variation).arguments
    assert isinstance(Judge().judge(task, case, draw, flatten_outputs(KERNELS["tf32"](a, b))), Verdict)
    assert isinstance(Judge().judge(task, case, draw, flatten_outputs(KERNELS["float16"](a, b))), Failure)


def test_sixteen_bit_inputs_gain_nothing_from_the_policy_and_prompts_state_it() -> None:
    half = make_task(
        torch.matmul, TensorSpec((4, 8), "float16"), TensorSpec((8, 4), "float16"), tolerance=Tolerance(products="tf32")
    )
    outputs = flatten_outputs(torch.zeros(4, 4))
    assert arithmetic(half, half.small_cases[0], Draw(0), outputs).operand_epsilon == 0
    wide = make_task(lambda a, b: a @ b, *PRODUCT, tolerance=Tolerance(products="tf32"))
    assert arithmetic(wide, wide.small_cases[0], Draw(0), outputs).operand_epsilon == 2**-9
    assert "may be taken in TF32" in task_text(wide)
    assert "input_precision='ieee'" in task_text(load_task("softmax"))
    assert "TF32" not in task_text(load_task("attention"))


def test_equal_terms_may_round_in_one_direction() -> None:
    x = torch.full((4, 20_000), 0.1)
    total = torch.zeros(4)
    for column in x.T:
        total += column
    expected = Expected(flatten_outputs(x.double().sum(1)), flatten_outputs(x.sum(1)))
    assert isinstance(compare(flatten_outputs(total), expected, Tolerance(), Arithmetic(20_000)), Failure)
    assert isinstance(compare(flatten_outputs(total), expected, Tolerance(), Arithmetic(20_000, equal_terms=True)), Verdict)


def verdict_of(candidate: torch.Tensor, reference: torch.Tensor, exact: torch.Tensor | None = None) -> Verdict | Failure:
    exact = reference.double() if exact is None else exact
    return compare(flatten_outputs(candidate), Expected(flatten_outputs(exact), flatten_outputs(reference)), Tolerance())


def test_strides_are_those_of_a_dense_reference_and_free_where_they_mean_nothing() -> None:
    x = torch.randn(4, 6, 5)
    turned = x.permute(2, 0, 1)
    dense = turned.contiguous()
    copied = turned.clone(memory_format=torch.preserve_format)
    assert isinstance(verdict_of(copied, turned), Verdict), "dense in another order: equal strides"
    assert isinstance(verdict_of(dense, turned), Failure), "the reference keeps the order of its memory"
    assert isinstance(verdict_of(turned, dense), Failure)
    gaps = torch.randn(4, 20)[:, ::2]
    assert isinstance(verdict_of(gaps.contiguous(), gaps), Verdict), "a view with gaps: contiguous memory will do"
    assert isinstance(verdict_of(gaps, gaps.contiguous()), Failure)
    assert isinstance(verdict_of(gaps, gaps), Verdict)
    repeated = torch.randn(6).expand(4, 6)
    assert isinstance(verdict_of(repeated.contiguous(), repeated), Verdict)
    assert isinstance(verdict_of(repeated, repeated.contiguous()), Failure)
    single = torch.randn(1, 6)
    assert isinstance(verdict_of(single.as_strided((1, 6), (77, 1)), single), Verdict), "a dimension of one has no stride"
    assert isinstance(verdict_of(torch.empty(0, 3).T, torch.empty(3, 0)), Verdict)


def test_what_the_reference_itself_overflows_to_is_accepted_there_and_nothing_else_is() -> None:
    exact = torch.randn(2, 70).double()
    reference = exact.float()
    reference[0, 3] = float("nan")
    right = exact.float()
    assert isinstance(verdict_of(right, reference, exact), Verdict), "better than the reference"
    assert isinstance(verdict_of(reference, reference, exact), Verdict), "as the reference"
    for place, value in (((0, 3), float("inf")), ((0, 4), float("nan")), ((0, 3), 1e9)):
        other = right.clone()
        other[place] = value
        assert isinstance(verdict_of(other, reference, exact), Failure), (place, value)


def test_zeros_expected_leave_no_room_but_for_subnormals() -> None:
    for dtype, allowed, refused in (
        (torch.float32, 1e-39, 1e-36), (torch.bfloat16, 1e-39, 1e-36), (torch.float16, 5e-8, 1e-6), (torch.float64, 1e-309, 1e-306),
    ):  # fmt: skip
        zeros = torch.zeros(3, 80, dtype=dtype)
        for value, kind in ((allowed, Verdict), (refused, Failure)):
            candidate = zeros.clone()
            candidate[1, 7] = value
            assert isinstance(verdict_of(candidate, zeros), kind), (dtype, value)
        assert isinstance(verdict_of(-zeros, zeros), Verdict)
        assert isinstance(verdict_of(torch.full_like(zeros, float("nan")), zeros), Failure)


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_doubles_beyond_the_square_root_of_their_range_are_judged(scale: float) -> None:
    exact = (torch.rand(3, 90, dtype=torch.float64) + 0.5) * scale
    assert isinstance(verdict_of(exact, exact), Verdict)
    for wrong in (torch.zeros_like(exact), exact * 1.001, -exact, exact.flip(0), torch.full_like(exact, 1e300)):
        assert isinstance(verdict_of(wrong, exact), Failure)


def test_complex_outputs_are_judged_by_both_parts() -> None:
    exact = torch.complex(torch.randn(4, 50).double(), torch.randn(4, 50).double())
    reference = exact.to(torch.complex64)
    assert isinstance(verdict_of(reference, reference, exact), Verdict)
    for wrong in (
        reference.conj().resolve_conj(),
        reference * 1j,
        reference.real + 0j,
        reference.index_fill(1, torch.tensor([3]), 0),
    ):
        assert isinstance(verdict_of(wrong, reference, exact), Failure)
    bad = reference.clone()
    bad[2, 5] = complex(1.0, float("nan"))
    failure = verdict_of(bad, reference, exact)
    assert isinstance(failure, Failure)
    assert "worst at [2, 11]" in failure.message
    point = torch.tensor(1 + 2j)
    assert isinstance(verdict_of(point, point, point.to(torch.complex128)), Verdict)
    assert isinstance(verdict_of(point + 1j, point, point.to(torch.complex128)), Failure)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint16])
def test_dtypes_that_cannot_be_judged_are_refused_when_the_task_is_loaded(dtype: torch.dtype) -> None:
    task = make_task(lambda x: x.abs().to(dtype), TensorSpec((4, 8), "float32"), oracle="reference")
    with pytest.raises(TaskError, match="complex64"):
        check_task(task)
    with pytest.raises(TaskError, match="complex64"):
        Judge().judge(task, task.small_cases[0], Draw(0), flatten_outputs(torch.zeros(4, 8)))


def test_outputs_that_are_no_dense_tensors_are_a_wrong_structure() -> None:
    x = torch.eye(4)
    failure = verdict_of(x.to_sparse(), x)
    assert isinstance(failure, Failure)
    assert (failure.status, "layout" in failure.message) == (Status.WRONG_STRUCTURE, True)


def test_too_little_memory_is_met_once_and_is_no_fault_of_the_candidate() -> None:
    calls: list[int] = []

    def reference(x: torch.Tensor) -> torch.Tensor:
        calls.append(len(calls))
        if len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return x + 1

    task = make_task(reference, TensorSpec((100,), "float32"))
    case, judge = task.small_cases[0], Judge()
    x = make_inputs(task, case, 0, "cpu").arguments[0]
    assert isinstance(judge.judge(task, case, Draw(0), flatten_outputs(x + 1)), Verdict)
    assert len(calls) == 4, "once in vain, once for the answer"
    assert isinstance(judge.judge(task, case, Draw(0), flatten_outputs(x)), Failure)

    def hopeless(x: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        judge.judge(replace(task, name="hopeless", reference=hopeless), case, Draw(0), flatten_outputs(x))


def test_answers_never_exceed_the_capacity_of_the_oracle() -> None:
    task = make_task(torch.exp, TensorSpec((100,), "float32"))
    case = task.small_cases[0]
    oracle = Oracle("cpu", capacity_bytes=100 * (8 + 4) - 1)
    assert oracle.expected(task, case, Draw(0)).nbytes == 1200
    assert oracle.cached_bytes == 0
    oracle = Oracle("cpu", capacity_bytes=2000)
    for seed in range(3):
        oracle.expected(task, case, Draw(seed))
        assert oracle.cached_bytes == 1200
    oracle.clear()
    assert oracle.cached_bytes == 0


def test_gradients_flow_through_outputs_that_ask_for_one_and_no_others() -> None:
    x = torch.ones(3, requires_grad=True)
    outputs = flatten_outputs((x * 2, {"mask": x > 0, "detached": x.detach() * 3, "sum": x.sum()}))
    assert differentiable_places(outputs.tensors) == (0, 3)


def plan(outputs: Any, storages: tuple[int, ...]) -> LaunchPlan:
    values = tuple(Value(storage, "float32", (4,), (1,), 0) for storage in storages)
    sources = (Source("argument", 0, 0), Source("argument", 1, 1))
    return LaunchPlan("3.9", "cuda:90", (16,) * 4, values, sources, (), {}, outputs, (), {})


def test_outputs_that_share_memory_where_the_reference_makes_new_are_refused() -> None:
    task = make_task(lambda x, y: (x + y, x * y), TensorSpec((4,), "float32"), TensorSpec((4,), "float32"))
    shared = reference_sharing(task)
    assert shared == frozenset()
    assert aliasing_failure(task, plan([{"value": 2}, {"value": 3}], (0, 1, 2, 3)), shared) is None
    for outputs, storages in (([{"value": 2}, {"value": 3}], (0, 1, 2, 2)), ([{"value": 2}, {"value": 1}], (0, 1, 2, 3))):
        failure = aliasing_failure(task, plan(outputs, storages), shared)
        assert failure is not None
        assert (failure.status, failure.stage) == (Status.WRONG_STRUCTURE, Stage.TRACE)
        assert "output" in failure.message
    view = replace(task, reference=lambda x, y: {"view": x.view(2, 2), "sum": x + y})
    assert reference_sharing(view) == {("output 0", "argument 0")}
    nested = plan({"view": {"value": 0}, "sum": {"list": [{"value": 2}, None]}}, (0, 1, 2, 3))
    assert plan_sharing(nested) == {("output 0", "argument 0")}
    assert aliasing_failure(view, nested, reference_sharing(view)) is None


def test_no_builtin_task_returns_memory_of_its_inputs() -> None:
    for name in ("softmax", "rms_norm", "attention"):
        assert reference_sharing(load_task(name)) == frozenset()


def divergence(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.kl_div(p.log_softmax(1), q.softmax(1), reduction="batchmean")


def by_hand(p: torch.Tensor, q: torch.Tensor, told: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    shifted, powers = p - p.amax(1, keepdim=True), (q - q.amax(1, keepdim=True)).exp()
    logarithms, shares = shifted - shifted.exp().sum(1, keepdim=True).log(), powers / powers.sum(1, keepdim=True)
    terms = shares * (told(shares.log()) - told(logarithms))
    return terms.cumsum(1)[:, -1].cumsum(0)[-1] / len(p)


def test_a_loss_whose_terms_cancel_is_not_judged_by_the_luck_of_one_rounding() -> None:
    """Small inputs make both distributions nearly uniform, so their divergence is 1e-5 of the logarithms it is the difference of."""
    task = make_task(divergence, TensorSpec((3, 7), "float32"), TensorSpec((3, 7), "float32"))
    case, judge = task.small_cases[0], Judge()
    for seed in range(40):
        draw = Draw(seed, Variation.TIMES_0_01)
        p, q = make_inputs(task, case, seed, "cpu", draw.variation).arguments
        verdict = judge.judge(task, case, draw, flatten_outputs(by_hand(p, q, lambda x: x)))
        assert isinstance(verdict, Verdict), verdict.message
        lowered = judge.judge(task, case, draw, flatten_outputs(by_hand(p, q, lambda x: x.half().float())))
        assert isinstance(lowered, Failure)
