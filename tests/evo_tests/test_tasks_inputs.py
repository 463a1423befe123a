"""Inputs that are not numbers on a line: orders, page tables, bounds of groups, bits of 8-bit floats."""

from __future__ import annotations

import ast
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import evo.reporting.exporting as exporting
from evo.tasks.base import Case, Task, TensorSpec
from evo.tasks.inputs import applicable_variations, make_inputs, to_float64
from evo.tasks.loading import load_task


def drawn(spec: TensorSpec, seed: int = 3) -> torch.Tensor:
    case = Case("case", (spec,), spec.nbytes, 0)
    task = Task("task", "", "task", torch.clone, (case,), (), (replace(case, name="small"),), ())
    assert applicable_variations(task, case) == ()
    (tensor,) = make_inputs(task, case, seed, "cpu").arguments
    assert torch.equal(tensor, make_inputs(task, case, seed, "cpu").arguments[0])
    assert torch.equal(tensor, to_float64(make_inputs(task, case, seed, "cpu")).arguments[0])
    assert isinstance(tensor, torch.Tensor)
    return tensor


def test_a_permutation_has_each_number_once_at_most_and_seeds_give_different_ones() -> None:
    order = drawn(TensorSpec((4, 25), "int32", "permutation", high=100))
    assert order.dtype == torch.int32
    assert order.flatten().sort().values.tolist() == list(range(100))
    assert not torch.equal(order, drawn(TensorSpec((4, 25), "int32", "permutation", high=100), seed=4))
    some = drawn(TensorSpec((30,), "int64", "permutation", low=10, high=1000))
    assert len(set(some.tolist())) == 30
    assert int(some.min()) >= 10
    assert int(some.max()) < 1000


def test_a_partition_ascends_from_low_to_high_and_may_have_empty_parts() -> None:
    bounds = drawn(TensorSpec((200,), "int32", "partition", low=0, high=100))
    assert (int(bounds[0]), int(bounds[-1])) == (0, 100)
    sizes = bounds.diff()
    assert int(sizes.min()) == 0
    assert int(sizes.max()) > 1
    assert drawn(TensorSpec((2,), "int64", "partition", high=7)).tolist() == [0, 7]


def test_bits_of_8_bit_floats_are_normal_numbers_of_either_sign_without_nan() -> None:
    bits = drawn(TensorSpec((20000,), "uint8", "float8_e4m3fn", scale=200.0))
    values = bits.view(torch.float8_e4m3fn).float()
    assert not bool(values.isnan().any())
    assert float(values.max()) == 448.0
    assert float(values.min()) == -448.0
    assert abs(float(values.mean())) < 5
    assert 150 < float(values.std()) < 210


@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec((4, 25), "int32", "permutation", low=3, high=200),
        TensorSpec((30,), "int64", "partition", low=2, high=9),
        TensorSpec((500,), "uint8", "float8_e4m3fn", scale=2.0),
    ],
    ids=lambda spec: spec.distribution,
)
def test_the_tests_of_an_exported_package_draw_the_same_kinds_of_values(spec: TensorSpec) -> None:
    tree = ast.parse((Path(exporting.__path__[0]) / "test_front.txt").read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in ("make_tensor", "extent")]
    room: dict[str, Any] = {"torch": torch, "DEVICE": "cpu"}
    exec(compile(tree, "test_front", "exec"), room)
    told = {**asdict(spec), "strides": spec.element_strides}
    tensor = room["make_tensor"](told, torch.Generator().manual_seed(3), False)
    assert torch.equal(tensor, drawn(spec))


@pytest.mark.parametrize(
    ("what", "wrong"),
    [
        ("no 101 elements", {"shape": (101,), "dtype": "int32", "distribution": "permutation", "high": 100}),
        ("int32 or int64", {"shape": (10,), "dtype": "float32", "distribution": "permutation", "high": 100}),
        ("without an offset", {"shape": (10,), "dtype": "int32", "distribution": "partition", "high": 100, "offset": 1}),
        ("at least 2 elements", {"shape": (1,), "dtype": "int32", "distribution": "partition", "high": 100}),
        ("uint8", {"shape": (10,), "dtype": "int8", "distribution": "float8_e4m3fn"}),
    ],
)
def test_what_cannot_be_drawn_is_refused_where_it_is_declared(what: str, wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=what):
        TensorSpec(**wrong)  # type: ignore[arg-type]


def test_references_agree_with_torch_where_torch_has_the_operator() -> None:
    pooled = load_task("max_pool2d")
    for case in pooled.small_cases:
        x, kernel, stride, padding = make_inputs(pooled, case, 5, "cpu").arguments
        values, places = torch.nn.functional.max_pool2d(x, kernel, stride, padding, return_indices=True)
        ours = pooled.reference(x, kernel, stride, padding)
        assert torch.equal(ours[0], values)
        assert torch.equal(ours[1].long(), places)
    norm = load_task("layer_norm_backward")
    dy, x, weight, eps = to_float64(make_inputs(norm, norm.small_cases[1], 5, "cpu")).arguments
    x, weight, bias = (item.requires_grad_() for item in (x, weight, torch.zeros_like(weight)))
    with torch.enable_grad():
        y = torch.nn.functional.layer_norm(x, (x.shape[1],), weight, bias, eps)
        expected = torch.autograd.grad(y, (x, weight, bias), dy)
    for ours, theirs in zip(norm.reference(dy, x.detach(), weight.detach(), eps), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    "name", ["attention_backward", "rms_norm_backward", "softmax_backward", "swiglu_backward", "cross_entropy_backward"]
)
def test_gradients_are_those_of_the_forward_pass(name: str) -> None:
    task = load_task(name)
    given = list(to_float64(make_inputs(task, task.small_cases[0], 5, "cpu")).arguments)
    dy, rest = given[0], [item for item in given[1:] if isinstance(item, torch.Tensor) and item.is_floating_point()]
    if name == "softmax_backward":
        logits = rest[0].log()
        rest = [logits]
        given[1] = torch.softmax(logits, dim=-1)
    wanted = [item.requires_grad_() for item in rest]

    def rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x / (x.square().mean(dim=-1, keepdim=True) + given[3]).sqrt() * weight

    forward = {
        "attention_backward": lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        "rms_norm_backward": rms,
        "softmax_backward": lambda x: torch.softmax(x, dim=-1),
        "swiglu_backward": lambda gate, up: torch.nn.functional.silu(gate) * up,
        "cross_entropy_backward": lambda logits: torch.nn.functional.cross_entropy(logits, given[2], reduction="none"),
    }[name]
    with torch.enable_grad():
        expected = torch.autograd.grad(forward(*wanted), wanted, dy)
    ours = task.reference(*(item.detach() if isinstance(item, torch.Tensor) else item for item in given))
    for found, theirs in zip(ours if isinstance(ours, tuple) else (ours,), expected, strict=True):
        torch.testing.assert_close(found, theirs)
