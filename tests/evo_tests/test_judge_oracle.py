"""The oracle's answers are reproducible, complete (returned, mutated, gradients) and bounded in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from evo.evaluation.inputs import make_inputs, to_float64
from evo.evaluation.judge import Judge, summed_terms
from evo.evaluation.oracle import Oracle, compute_outputs, flatten_outputs, matrix_products
from evo.evaluation.tolerance import Verdict
from evo.records import Failure, Status
from evo.tasks.base import Case, Task, TensorSpec
from evo.tasks.draws import Draw
from evo.tasks.loading import load_task


def make_task(reference: Callable[..., Any], *arguments: TensorSpec | float, **options: Any) -> Task:
    case = Case("only", arguments, bytes=1, flops=0)
    return Task(
        name="made",
        description="",
        entry="made",
        reference=reference,
        training_cases=(replace(case, name="training"),),
        held_out_cases=(),
        small_cases=(case,),
        starting_kernels=("def made(): ...\n",),
        **options,
    )


def test_inputs_depend_on_the_seed_alone() -> None:
    task = make_task(torch.add, TensorSpec((4, 5), "bfloat16"), TensorSpec((4, 5), "int32", "integers", low=-3, high=9))
    case = task.small_cases[0]
    torch.manual_seed(1)
    first = make_inputs(task, case, 7, "cpu").arguments
    state = torch.random.get_rng_state()
    torch.manual_seed(2)
    again = make_inputs(task, case, 7, "cpu").arguments
    torch.manual_seed(1)
    assert torch.equal(torch.random.get_rng_state(), state), "the global generator was used"
    other = make_inputs(task, case, 8, "cpu").arguments
    for a, b, c in zip(first, again, other, strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
    assert first[1].dtype == torch.int32
    assert -3 <= int(first[1].min()) <= int(first[1].max()) < 9


def test_strides_offsets_and_distributions_are_honoured() -> None:
    specs = (
        TensorSpec((3, 4), "float16", strides=(10, 2), offset=5),
        TensorSpec((3, 4), "float32", strides=(0, 1)),
        TensorSpec((2, 0), "float32"),
        TensorSpec((1000,), "float32", "uniform", low=2.0, high=3.0),
        TensorSpec((3,), "int8", "ones"),
    )
    task = make_task(lambda *a: a[0], *specs)
    strided, expanded, empty, uniform, ones = make_inputs(task, task.small_cases[0], 0, "cpu").arguments
    assert (strided.stride(), strided.storage_offset()) == ((10, 2), 5)
    assert strided.untyped_storage().nbytes() == 2 * (5 + 2 * 10 + 3 * 2 + 1)
    assert torch.equal(expanded[0], expanded[2])
    assert empty.shape == (2, 0)
    assert 2.0 <= float(uniform.min()) < 2.1 < 2.9 < float(uniform.max()) < 3.0
    assert ones.tolist() == [1, 1, 1]


def test_copies_keep_strides_and_float64_keeps_integers() -> None:
    task = make_task(
        lambda *a: a[0],
        TensorSpec((3, 4), "float16", strides=(10, 2), offset=5),
        TensorSpec((2,), "int64", "integers", high=9.0),
        0.5,
    )
    inputs = make_inputs(task, task.small_cases[0], 0, "cpu")
    copy, wide = inputs.clone(), to_float64(inputs)
    assert copy.arguments[0].stride() == (10, 2)
    assert copy.arguments[0].data_ptr() != inputs.arguments[0].data_ptr()
    assert torch.equal(copy.arguments[0], inputs.arguments[0])
    assert wide.arguments[0].dtype == torch.float64
    assert wide.arguments[1].dtype == torch.int64
    assert wide.arguments[2] == 0.5


def test_answers_are_cached_and_the_least_recent_ones_dropped() -> None:
    calls: list[torch.dtype] = []

    def reference(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.dtype)
        return x + 1

    task = make_task(reference, TensorSpec((100,), "float32"))
    case = task.small_cases[0]
    oracle = Oracle("cpu", capacity_bytes=2 * 100 * (8 + 4))
    answer = oracle.expected(task, case, Draw(0))
    assert calls == [torch.float32, torch.float64]
    oracle.expected(task, case, Draw(1))
    assert oracle.expected(task, case, Draw(0)) is answer
    oracle.expected(task, case, Draw(2))
    assert oracle.cached_bytes == 2 * 100 * (8 + 4)
    assert oracle.expected(task, case, Draw(0)) is answer
    assert len(calls) == 6
    oracle.expected(task, case, Draw(1))
    assert len(calls) == 8, "the least recent answer was kept"


def test_a_reference_oracle_is_its_own_answer() -> None:
    task = make_task(torch.exp, TensorSpec((10,), "float16"), oracle="reference")
    answer = Oracle().expected(task, task.small_cases[0], Draw(0))
    assert answer.exact.tensors[0].dtype == torch.float16
    assert torch.equal(answer.exact.tensors[0], answer.reference.tensors[0])


def test_mutated_arguments_are_outputs_and_must_be_written() -> None:
    def append(cache: torch.Tensor, row: torch.Tensor) -> None:
        cache[1] = row

    task = make_task(append, TensorSpec((3, 8), "float32"), TensorSpec((8,), "float32"), mutates=(0,))
    case, judge = task.small_cases[0], Judge()
    cache, row = make_inputs(task, case, 5, "cpu").arguments
    idle = judge.judge(task, case, Draw(5), flatten_outputs(None, mutated=[cache.clone()]))
    assert isinstance(idle, Failure)
    assert idle.status is Status.WRONG_VALUES
    cache[1] = row
    verdict = judge.judge(task, case, Draw(5), flatten_outputs(None, mutated=[cache]))
    assert isinstance(verdict, Verdict)
    assert verdict.error_ratio == 0
    missing = judge.judge(task, case, Draw(5), flatten_outputs(None))
    assert isinstance(missing, Failure)
    assert missing.status is Status.WRONG_STRUCTURE


def test_gradients_of_a_module_follow_its_outputs() -> None:
    def linear(parameters: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return x @ parameters["weight"]

    task = make_task(
        linear,
        TensorSpec((4, 6), "float32", requires_grad=True),
        form="module",
        parameters={"weight": TensorSpec((6, 3), "float32", requires_grad=True), "unused": TensorSpec((2,), "float32")},
        backward=True,
    )
    answer = Oracle().expected(task, task.small_cases[0], Draw(0))
    y, weight_gradient, x_gradient = answer.exact.tensors
    assert answer.exact.structure == "* gradients[2]"
    assert (y.shape, weight_gradient.shape, x_gradient.shape) == ((4, 3), (6, 3), (4, 6))
    inputs = to_float64(make_inputs(task, task.small_cases[0], 0, "cpu"))
    x = inputs.arguments[0].detach()
    # dL/dx = g Wᵀ and dL/dW = xᵀ g, so both give xᵀ · dL/dx = dL/dW · Wᵀ.
    torch.testing.assert_close(x.T @ x_gradient, weight_gradient @ inputs.parameters["weight"].detach().T)


def test_the_reference_runs_without_tf32_and_settings_come_back() -> None:
    before = torch.backends.cudnn.allow_tf32
    with matrix_products():
        assert not torch.backends.cudnn.allow_tf32
        assert not torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    assert torch.backends.cudnn.allow_tf32 == before


def test_outputs_that_are_no_tensors_are_refused() -> None:
    with pytest.raises(TypeError, match="type int"):
        flatten_outputs((torch.ones(1), 3))
    nested = flatten_outputs({"a": torch.ones(1), "b": [None, (torch.ones(2),)]})
    assert nested.structure == "{'a': *, 'b': [None, (*)]}"
    assert len(nested.tensors) == 2


def test_a_failure_names_the_case_and_an_honest_result_passes() -> None:
    task, judge = load_task("rms_norm"), Judge()
    case = task.small_cases[0]
    inputs = make_inputs(task, case, 3, "cpu")
    good = compute_outputs(task, inputs.clone())
    assert isinstance(judge.judge(task, case, Draw(3), good), Verdict)
    swapped = judge.judge(task, case, Draw(3), flatten_outputs((good.tensors[1], good.tensors[0])))
    assert isinstance(swapped, Failure)
    assert swapped.message.startswith(f"case {case.name}: output 0")
    assert case.name not in swapped.signature, "equal failures on different cases share a signature"
    stale = judge.judge(task, case, Draw(4), good)
    assert isinstance(stale, Failure), "outputs of other inputs passed"


def test_the_number_of_summed_terms_covers_products_and_full_reductions() -> None:
    gemm = load_task("gemm_bias_gelu")
    assert summed_terms(gemm.small_cases[0], flatten_outputs(torch.empty(5, 19))) >= 33
    total = Case("total", (TensorSpec((64, 64), "float32"),), bytes=1, flops=0)
    assert summed_terms(total, flatten_outputs(torch.empty(()))) == 4096
