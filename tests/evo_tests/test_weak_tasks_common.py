"""No false alarm: common operations on a few odd shapes are not found weak, so that nobody gets used to accepting weak tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from evo.evaluation.weakness import Bounds, diagnose
from evo.tasks.base import Argument, Case, Task, TensorSpec, Tolerance
from evo.tasks.loading import builtin_tasks, check_task, load_task

SHAPES = ((3, 7), (5, 129), (64, 256), (33, 65))
"""Two small cases, one for training, one held out."""
KERNEL = "def entry(): ...\n"


def wide(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def task(reference: Callable[..., Any], arguments: Callable[[int, int], tuple[Argument, ...]], **options: Any) -> Task:
    cases = [Case(f"{r}x{c}", arguments(r, c), bytes=8 * r * c, flops=r * c) for r, c in SHAPES]
    return Task(
        name="common",
        description="",
        entry="entry",
        reference=reference,
        training_cases=tuple(cases[2:3]),
        held_out_cases=tuple(cases[3:]),
        small_cases=tuple(cases[:2]),
        starting_kernels=(KERNEL,),
        **options,
    )


def of_dtype(dtype: str) -> Callable[[int, int], tuple[Argument, ...]]:
    return lambda r, c: (TensorSpec((r, c), dtype),)


def classes(r: int, c: int) -> tuple[Argument, ...]:
    return TensorSpec((r, c), "float32"), TensorSpec((r,), "int64", "integers", high=c)


def rows_and_weights(r: int, c: int) -> tuple[Argument, ...]:
    return TensorSpec((r, c), "float16"), TensorSpec((c,), "float16", "ones"), TensorSpec((c,), "float16", "zeros")


def products(r: int, c: int) -> tuple[Argument, ...]:
    return TensorSpec((r, c), "float32", requires_grad=True), TensorSpec((c, 17), "float32", requires_grad=True)


def scattered(r: int, c: int) -> tuple[Argument, ...]:
    index = TensorSpec((r,), "int64", "integers", high=50)
    return TensorSpec((50, c), "float32", "zeros"), index, TensorSpec((r, c), "float32")


def scatter(total: torch.Tensor, index: torch.Tensor, x: torch.Tensor) -> None:
    total.index_add_(0, index, x)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


def mean_cross_entropy(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, target)


COMMON = {
    "sum of float32": task(lambda x: x.sum(-1), of_dtype("float32")),
    "sum of bfloat16": task(lambda x: x.sum(-1), of_dtype("bfloat16")),
    "maximum": task(lambda x: x.amax(-1), of_dtype("bfloat16")),
    "position of the maximum": task(lambda x: x.argmax(-1), of_dtype("float32")),
    "running sum": task(lambda x: wide(x).cumsum(-1).to(x.dtype), of_dtype("float16")),
    "relu": task(torch.relu, of_dtype("float16")),
    "gelu": task(F.gelu, of_dtype("bfloat16")),
    "transposed copy": task(lambda x: x.t().contiguous(), of_dtype("float32")),
    "copy": task(lambda x: x.clone(), of_dtype("float32")),
    "largest three and where": task(lambda x: tuple(x.topk(3, -1)), of_dtype("float32")),
    "layer norm": task(layer_norm, rows_and_weights),
    "cross entropy": task(mean_cross_entropy, classes),
    "product with gradients": task(lambda a, b: a @ b, products, backward=True),
    "product in TF32": task(lambda a, b: a @ b, products, tolerance=Tolerance(products="tf32")),
    "scattered sum in place": task(scatter, scattered, mutates=(0,)),
}


@pytest.mark.parametrize("name", COMMON)
def test_a_common_operation_is_not_found_weak(name: str) -> None:
    check_task(COMMON[name])
    diagnosis = diagnose(COMMON[name], Bounds(600.0))
    assert [finding.text for finding in diagnosis.weaknesses] == []
    assert not diagnosis.unfit
    assert len(diagnosis.looked_at) == len(SHAPES)


@pytest.mark.gpu
@pytest.mark.parametrize("name", builtin_tasks())
def test_no_task_of_the_package_is_weak_on_a_gpu_where_training_cases_are_looked_at(name: str) -> None:
    loaded = load_task(name)
    diagnosis = diagnose(loaded, Bounds(30.0), "cuda")
    assert [finding.text for finding in diagnosis.weaknesses] == []
    assert not diagnosis.unfit
    assert set(diagnosis.looked_at) & {case.name for case in loaded.training_cases}, diagnosis.skipped
