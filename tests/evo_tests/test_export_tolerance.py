"""The exported test's own copy of the tolerance rule says what the judge says, on errors of every size and in every dtype."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pytest
import torch

from evo.evaluation.judge import arithmetic, summed_terms
from evo.evaluation.oracle import Expected, Outputs
from evo.evaluation.tolerance import PRODUCT_EPSILON, Arithmetic, Verdict, compare, structure_failure
from evo.records import Stage
from evo.reporting.exporting.package import template
from evo.tasks.base import Case, Task, TensorSpec, Tolerance
from evo.tasks.draws import Draw

PARTS = {
    "error_ratio", "defined", "real_parts", "errors", "raised", "row_norms", "chunks", "specials_agree", "same_specials",
    "integer_ratio", "rounded_operands", "summed_terms", "strides_agree", "ELEMENT_SHARE", "ROUNDING_SHARE", "PRODUCT_EPSILON", "CHUNK",
}  # fmt: skip


def exported(fronts: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The rule alone: importing the whole file would look for exported kernels."""
    chosen = []
    for node in ast.parse(template("test_front.txt")).body:
        names = {target.id for target in node.targets if isinstance(target, ast.Name)} if isinstance(node, ast.Assign) else set()
        if isinstance(node, ast.FunctionDef):
            names = {node.name}
        if names & PARTS:
            chosen.append(node)
    found: dict[str, Any] = {"torch": torch, "math": math, "FRONTS": fronts or {}}
    exec(compile(ast.Module(chosen, []), "test_front.py", "exec"), found)
    assert set(found) >= PARTS
    return found


RULE = exported()


def both(
    c: torch.Tensor, y: torch.Tensor, r: torch.Tensor, tolerance: Tolerance, terms: int, operands: float
) -> tuple[float, Any]:
    theirs = RULE["error_ratio"](c, y, r, asdict(tolerance), terms, operands)
    expected = Expected(Outputs("*", (y,)), Outputs("*", (r,)))
    return theirs, compare(Outputs("*", (c,)), expected, tolerance, Arithmetic(terms, False, operands))


def agree(c: torch.Tensor, y: torch.Tensor, r: torch.Tensor, tolerance: Tolerance, terms: int = 1, operands: float = 0.0) -> bool:
    """Whether both pass; they must say the same, and be as far from the limit."""
    theirs, ours = both(c, y, r, tolerance, terms, operands)
    if isinstance(ours, Verdict):
        assert theirs == pytest.approx(ours.error_ratio, rel=1e-9, abs=1e-12)
        return True
    assert not theirs <= 1, (theirs, ours)
    return False


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("shape", [(), (7,), (5, 33), (3, 4, 100), (2, 1000)])
def test_errors_are_measured_alike(dtype: torch.dtype, shape: Sequence[int]) -> None:
    generator = torch.Generator().manual_seed(len(shape))
    wide = torch.complex128 if dtype.is_complex else torch.float64
    y = torch.randn(shape, generator=generator, dtype=wide) * torch.rand(shape, generator=generator, dtype=torch.float64).pow(6)
    r = y.to(dtype)
    said = set()
    for size in (0.0, 0.3, 1.0, 3.0, 10.0, 100.0):
        for relative in (True, False):
            noise = torch.randn(shape, generator=generator, dtype=wide) * size * torch.finfo(dtype).eps
            c = (y + noise * (y if relative else y.abs().max())).to(dtype)
            for tolerance in (Tolerance(), Tolerance(ratio=4.0, floor_epsilons=8.0)):
                said.add(agree(c, y, r, tolerance, terms=1000))
    assert said == {True, False}


def test_products_of_less_precision_are_allowed_alike() -> None:
    y = torch.linspace(1, 2, 4096, dtype=torch.float64).reshape(4, 1024)
    r, c = y.float(), (y * (1 + 0.6 * 2.0**-10)).float()
    said = [
        agree(c, y, r, Tolerance(), 1024, PRODUCT_EPSILON[products]) for products in ("float32", "tf32", "float16", "bfloat16")
    ]
    assert said == [False, True, True, True]
    assert RULE["PRODUCT_EPSILON"] == dict(PRODUCT_EPSILON)


def test_a_small_element_beside_large_ones_is_seen_alike() -> None:
    y = torch.full((2, 512), 100.0, dtype=torch.float64)
    y[0, 5] = 2.0
    r = y.half()
    c = r.clone()
    c[0, 5] = 2.5
    assert not agree(c, y, r, Tolerance())
    c[0, 5] = 2.002
    assert agree(c, y, r, Tolerance())


@pytest.mark.parametrize(
    ("expected", "reference", "given", "passes"),
    [
        (math.nan, math.nan, math.nan, True),
        (1.0, 1.0, math.nan, False),
        (math.nan, math.nan, 1.0, False),
        (math.inf, math.inf, math.inf, True),
        (math.inf, math.inf, -math.inf, False),
        (1e6, math.inf, math.inf, True),  # beyond the range of float16
        (1e6, math.inf, 60000.0, False),
        (65504.0 * 1.001, 65504.0, math.inf, True),  # at its border
        (-65504.0 * 1.001, -65504.0, math.inf, False),
        (3.0, math.inf, math.inf, True),  # the reference overflows on its way
        (3.0, math.nan, math.nan, True),
        (3.0, math.nan, math.inf, False),
        (3.0, math.inf, 3.0, True),
        (3.0, math.inf, 4.0, False),
    ],
)
def test_nan_and_infinity_are_expected_alike(expected: float, reference: float, given: float, passes: bool) -> None:
    y = torch.linspace(1, 4, 128, dtype=torch.float64)
    r, c = y.half(), y.half()
    y[17], r[17], c[17] = expected, reference, given
    assert agree(c, y, r, Tolerance()) is passes


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool])
def test_integers_differ_alike(dtype: torch.dtype) -> None:
    y = (torch.arange(1000) % 2).to(dtype)
    said = set()
    for changed, by in ((0, 1), (1, 1), (30, 1), (300, 1), (1, 5)):
        c = y.clone()
        c[:changed] = (y[:changed].to(torch.int64) + by).to(dtype) if dtype != torch.bool else ~y[:changed]
        for tolerance in (
            Tolerance(),
            Tolerance(integer_slack=1, integer_share=0.02),
            Tolerance(integer_slack=5, integer_share=0.2),
        ):
            said.add(agree(c, y, y, tolerance))
    assert said == {True, False}
    large = torch.tensor([2**62, 2**62 + 1] * 40)
    assert not agree(large + 1, large, large, Tolerance())


def test_what_honest_arithmetic_may_cost_is_derived_alike() -> None:
    specs = (TensorSpec((64, 500), "float32"), TensorSpec((500, 3), "float16"))
    case = Case("c", specs, 1, 0)
    r = torch.zeros(64, 3)
    for products in ("float32", "tf32", "bfloat16"):
        tolerance = Tolerance(products=products)
        task = Task("t", "d", "e", lambda a, b: a @ b, (case,), (), (Case("s", specs, 1, 0),), (), tolerance)
        described = {"arguments": [{"shape": list(spec.shape), "dtype": spec.dtype} for spec in specs]}
        rule = exported({"t": {"tolerance": asdict(tolerance)}})
        ours = arithmetic(task, case, Draw(0), Outputs("*", (r,)))
        assert rule["rounded_operands"]("t", described) == ours.operand_epsilon
        assert rule["summed_terms"](described, [r]) == ours.terms == summed_terms(case, Outputs("*", (r,)))


def test_strides_agree_alike() -> None:
    base = torch.zeros(8, 6, 4)
    for r in (base, base.permute(2, 0, 1), base[:, ::2], base[:, :1].expand(8, 6, 4), base[:1]):
        for c in (r.contiguous(), torch.empty_strided(r.shape, r.stride()), r.transpose(0, 1).contiguous().transpose(0, 1)):
            ours = structure_failure(Outputs("*", (c,)), Outputs("*", (r,)), Stage.GATE) is None
            assert RULE["strides_agree"](c, r) is ours, (c.stride(), r.stride())
