"""Decides whether a kernel's outputs are as exact as honest arithmetic would make them, and says where they are not.

With oracle y in float64, reference r and candidate c, every floating-point output must satisfy ‖c − y‖ ≤ max(τ ‖r − y‖, floor)
in three measures: over the whole tensor; in every tile (a row of the last dimension; short rows are joined to at least
`MIN_TILE` elements, so that one lucky element of r decides nothing); and at the worst element, relative to
|y| + `ELEMENT_SHARE` · largest |y| of its tile, so that a wrong small element beside large ones is seen: in 16-bit outputs down
to about 1/2000 of the largest in its row (`evo.evaluation.tiling.ElementAllowance`).

Floors are relative to y, so zeros do not pass where outputs are tiny. They are
`Tolerance.floor_epsilons` · ε(output) for the rounding of results (twice that at single elements), plus
(1 + √n / 2) · ε(accumulator) for a sum of n terms in any order: the rounding errors of a sequential sum of n independent terms
have a standard deviation of about 0.2 √n ε |y|. ε(accumulator) is float32's (float64's for float64 outputs). Equal terms round in
one direction all along, so for constant inputs it is (1 + n / 4) · ε. Where terms cancel, results of few elements would be judged by the
luck of one rounding: there the standard deviation σ of the reference's error is taken over further draws
(`evo.evaluation.oracle`), and an error of (`LUCK` τ + √n / 2) σ is accepted, or (`LUCK` τ + n / 4) σ. On float32 products of
K = 4096 the floor is 4e-6, while TF32 errs by 4e-4. The one absolute slack: what float32 and bfloat16 hold as subnormal may be
zero, and two steps of 2⁻²⁴ in float16.

Where terms cancel all over (what is left of equal inputs after their mean was taken off, the gradient of a saturated softmax), y is
smaller than what rounds in between, and r may be exact by the luck of its order of operations; and of 100 000 rows r is lucky in some.
So what fails is judged once more beside computations that round by chance (`evo.evaluation.rounding`): the same multiple of σ is
added, now the standard deviation that they have in each tile where they round as float32 does, and ‖r − y‖ of a tile, and its worst
element, are the largest of r and those that round as r does. Where nothing cancels, σ is some ε(float32) of y, and this adds no more
than the floors do.

Where a task lets products of float32 inputs be taken in less (`Tolerance.products`), ε of that format is added, and that divided by
`ELEMENT_SHARE` at single elements. An operand cut to it, as tensor cores cut float32 to TF32, is off by a share that lies evenly
in [0, ε / mantissa): 0.35 ε in the mean (which sums of equal sign keep) and 0.4 ε as a root mean square; two operands make
0.7 ε and 0.57 ε of ‖y‖. (Standard model of floating-point arithmetic: Higham, Accuracy and Stability of Numerical Algorithms,
second edition, 2.2 and 3.1.) Several products in a row need a larger `ratio`, or `floor_epsilons`.

What this cannot see: errors that a 16-bit output's own rounding hides.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from evo.evaluation.differences import Measure, Wrongness, describe
from evo.evaluation.oracle import Expected, Outputs, Rounding
from evo.evaluation.tiling import (
    ELEMENT_SHARE,
    ElementAllowance,
    comparable,
    errors,
    row_norms,
    shown,
    special_mask,
    tile_size,
    tiles,
)
from evo.records import Failure, Stage, Status
from evo.tasks.base import Tolerance

PRODUCT_EPSILON: Mapping[str, float] = {"float32": 0.0, "tf32": 2.0**-9, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""What rounding operands of products to a format may cost, see the module's docstring: ε, but 2 ε for TF32, since where a few of the
terms are most of a row their operands' shares are no longer means, and either may be cut by almost ε."""


LUCK = 3.0
"""An error of three standard deviations is still luck."""


@dataclass(frozen=True)
class Arithmetic:
    """What honest arithmetic the outputs come from.

    Attributes:
        terms: Most terms summed for one output element; see `evo.evaluation.judge.summed_terms`.
        equal_terms: The terms may all be equal, so that their rounding errors add up.
        operand_epsilon: Of the format that operands of products may be rounded to, see `PRODUCT_EPSILON`.
    """

    terms: int = 1
    equal_terms: bool = False
    operand_epsilon: float = 0.0

    @property
    def steps(self) -> float:
        """How far the rounding errors of a sum may add up, in units of one."""
        return self.terms / 4 if self.equal_terms else math.sqrt(self.terms) / 2


@dataclass(frozen=True)
class Verdict:
    """Passed.

    Attributes:
        error_ratio: Worst measure as a share of what is allowed, at most 1; 0 means bit-exact where it counts.
        message: Which measure of which output came closest to its limit.
    """

    error_ratio: float
    message: str


@dataclass(frozen=True)
class _Measures:
    """Shares of what is allowed, and the allowances that a description of the failure needs."""

    whole: float
    tile: float
    element: float
    tile_allowed: torch.Tensor
    element_allowed: ElementAllowance

    @property
    def worst(self) -> tuple[float, str]:
        return max((self.whole, "the whole output"), (self.tile, "its worst row"), (self.element, "its worst element"))


@dataclass(frozen=True)
class _Floors:
    rounding: float
    inside: float
    absolute: float


def compare(
    candidate: Outputs,
    expected: Expected,
    tolerance: Tolerance,
    arithmetic: Arithmetic | int = 1,
    stage: Stage = Stage.GATE,
) -> Verdict | Failure:
    """Judges all outputs of one call.

    Args:
        candidate: What the kernel produced, on any device; it is moved in pieces to where the oracle's answer lies.
        expected: The oracle's answer.
        tolerance: The task's policy.
        arithmetic: How the outputs come about; a number stands for sums of that many terms.
        stage: Recorded in a failure.
    """
    problem = structure_failure(candidate, expected.reference, stage)
    if problem is not None:
        return problem
    arithmetic = Arithmetic(arithmetic) if isinstance(arithmetic, int) else arithmetic
    worst = Verdict(0.0, "every output is exact")
    outputs = zip(candidate.tensors, expected.exact.tensors, expected.reference.tensors, strict=True)
    for index, tensors in enumerate(outputs):
        c, y, r = map(comparable, tensors)
        if c.numel() == 0:
            continue
        if r.dtype.is_floating_point:
            verdict = _compare_floats(index, (c, y, r), tolerance, arithmetic, expected)
        else:
            verdict = _compare_integers(index, c, y, tolerance)
        if isinstance(verdict, Wrongness):
            text, kind = describe(verdict)
            return Failure(Status.WRONG_VALUES, stage, text, f"wrong_values:{stage}:output {index}:{kind}")
        if verdict.error_ratio > worst.error_ratio:
            worst = verdict
    return worst


def structure_failure(candidate: Outputs, reference: Outputs, stage: Stage) -> Failure | None:
    """What is wrong with the form of the outputs: nesting, kind, dtype, shape or strides."""
    problem = _structure_problem(candidate, reference)
    return (
        Failure(Status.WRONG_STRUCTURE, stage, problem, f"wrong_structure:{stage}:{problem.split(';')[0]}") if problem else None
    )


def _structure_problem(candidate: Outputs, reference: Outputs) -> str:
    if candidate.structure != reference.structure or len(candidate.tensors) != len(reference.tensors):
        return f"outputs have the structure {candidate.structure}; expected {reference.structure} (* is a tensor)"
    for index, (c, r) in enumerate(zip(candidate.tensors, reference.tensors, strict=True)):
        # A subclass could compute its answer when it is compared.
        if type(c) is not torch.Tensor:
            return f"output {index} is a {type(c).__name__}; expected a plain tensor"
        if c.layout != torch.strided or c.is_quantized:
            return f"output {index} has the layout {c.layout}; expected a dense tensor"
        if c.dtype != r.dtype:
            return f"output {index} has dtype {_name(c.dtype)}; expected {_name(r.dtype)}"
        if c.shape != r.shape:
            return f"output {index} has shape {list(c.shape)}; expected {list(r.shape)}"
        wanted = "contiguous ones" if r.is_contiguous() else "those of the reference"
        if not _strides_agree(c, r):
            return f"output {index} has strides {c.stride()}; expected {wanted}, {r.stride()}"
    return ""


def _strides_agree(c: torch.Tensor, r: torch.Tensor) -> bool:
    """Equal strides where the reference's output fills its memory densely in some order of dimensions; where it is a view with gaps
    or repeats, contiguous ones will do too. Dimensions of size 1 and tensors without elements have no strides to speak of."""
    if c.numel() < 2:
        return True
    ours, theirs = ([step for size, step in zip(t.shape, t.stride(), strict=True) if size > 1] for t in (c, r))
    sizes = [size for size in r.shape if size > 1]
    step, dense = 1, True
    for stride, size in sorted(zip(theirs, sizes, strict=True)):
        dense &= stride == step
        step *= size
    return ours == theirs or (not dense and c.is_contiguous())


def _compare_floats(
    index: int,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    tolerance: Tolerance,
    arithmetic: Arithmetic,
    expected: Expected,
) -> Verdict | Wrongness:
    c, y, r = tensors
    tile = tile_size(y)
    for c_part, y_part, r_part in tiles(tile, c, y, r, device=y.device):
        if not bool(special_mask(c_part, y_part, r_part, c.dtype).all()):
            return Wrongness(index, c, y, r, tile, Measure.SPECIAL, math.inf, "NaN or infinity")
    floors = _floors(r.dtype, tolerance, arithmetic)
    accepted = LUCK * tolerance.ratio + arithmetic.steps
    spread, rounding = expected.spread_of(index), expected.rounding_of(index)
    slack = torch.zeros((1, 1), dtype=torch.float64, device=y.device) if spread is None else accepted * spread.reshape(1, -1)
    if rounding is None:
        nothing = torch.zeros(-(-y.numel() // tile), dtype=torch.float64, device=y.device)
        rounding = Rounding(nothing, nothing, nothing)
    rounding = dataclasses.replace(rounding, deviation=accepted * rounding.deviation)
    measures = _measure(c, y, r, tile, tolerance, floors, slack, rounding)
    ratio, place = measures.worst
    if not ratio <= 1:  # not a number is no pass
        return Wrongness(
            index, c, y, r, tile, Measure.FLOAT, ratio, place,
            measures.tile_allowed, measures.element_allowed,
        )  # fmt: skip
    return Verdict(ratio, f"output {index}: error of {place} at {ratio:.2f} of what is allowed")


def _floors(dtype: torch.dtype, tolerance: Tolerance, arithmetic: Arithmetic) -> _Floors:
    info = torch.finfo(dtype)
    accumulator = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32)
    inside = accumulator.eps * (1 + arithmetic.steps) + arithmetic.operand_epsilon
    rounding = tolerance.floor_epsilons * info.eps
    # Kernels may flush float32 subnormals to zero (bfloat16 has the same range); float16 ones are kept, in steps of 2⁻²⁴.
    return _Floors(rounding, inside, 2.0**-23 if dtype == torch.float16 else info.tiny)


def _measure(
    c: torch.Tensor,
    y: torch.Tensor,
    r: torch.Tensor,
    tile: int,
    tolerance: Tolerance,
    floors: _Floors,
    slack: torch.Tensor,
    rounding: Rounding,
) -> _Measures:
    """`slack` [1, elements] is added to what is allowed, which only outputs of a single tile have (else [1, 1]), and so is the
    deviation of `rounding` in each tile; its errors stand beside the reference's."""
    amplified = rounding.deviation
    parts = []
    for y_part, r_part in tiles(tile, y, r, device=y.device):
        r_error, y_size = errors(r_part, y_part)
        parts.append(torch.stack([shown(r_error, y_size), y_size.amax(dim=1)]))
    of_each, largest = torch.cat(parts, dim=1)
    # Where a tile is all but zero, rounding is all there is of it: what the reference shows there holds for that tile alone.
    worst_shown = of_each[largest >= ELEMENT_SHARE * largest.max()].max()
    of_each = torch.maximum(of_each.clamp(min=worst_shown), rounding.shown)
    # Twice the rounding at single elements: one of several rounded terms (16-bit softmax weights in attention) may outweigh
    # a small element of y, and few rows give r few chances to show such an error.
    allowance = ElementAllowance(
        tolerance.ratio * of_each[:, None],
        2 * floors.rounding,
        floors.inside / ELEMENT_SHARE,
        floors.absolute + slack,
        amplified[:, None],
    )
    rows: list[torch.Tensor] = []
    element, first = 0.0, 0
    for c_part, y_part, r_part in tiles(tile, c, y, r, device=y.device):
        c_error, y_size = errors(c_part, y_part)
        r_error, _ = errors(r_part, y_part)
        worst = float((c_error / allowance.of(y_size, first)).max())
        element, first = max(element, math.inf if math.isnan(worst) else worst), first + len(y_size)
        rows.append(torch.stack([row_norms(item) for item in (c_error, r_error, y_size)]))
    norms = torch.cat(rows, dim=1)
    norms[1] = torch.maximum(norms[1], rounding.error)
    c_rows, r_rows, y_rows = norms
    c_all, r_all, y_all = row_norms(norms).tolist()
    absolute, floor = floors.absolute * math.sqrt(tile) + float(row_norms(slack)), floors.rounding + floors.inside
    amplified_rows = amplified * math.sqrt(tile)
    tile_allowed = torch.maximum(tolerance.ratio * r_rows, floor * y_rows + absolute) + amplified_rows
    whole_allowed = max(tolerance.ratio * r_all, floor * y_all + absolute * math.sqrt(len(y_rows))) + float(
        row_norms(amplified_rows.reshape(1, -1))
    )
    # Infinity over infinity, where doubles overflow, must count as wrong: NaN would lose every comparison.
    whole, row = (
        math.inf if math.isnan(ratio) else ratio for ratio in (c_all / whole_allowed, float((c_rows / tile_allowed).max()))
    )
    return _Measures(whole, row, element, tile_allowed, allowance)


def _compare_integers(index: int, c: torch.Tensor, y: torch.Tensor, tolerance: Tolerance) -> Verdict | Wrongness:
    tile = tile_size(y)
    wrong, largest = 0, 0.0
    for c_part, y_part in tiles(tile, c, y, device=y.device, overlap=False, dtype=torch.int64):
        # Differences of extreme int64 values overflow; in float64 they are merely large.
        difference = torch.where(c_part == y_part, 0.0, (c_part.double() - y_part.double()).abs().clamp(min=1.0))
        wrong += int((difference > 0).sum())
        largest = max(largest, float(difference.max()))
    if wrong == 0:
        return Verdict(0.0, f"output {index}: exact")
    # The share is one of many draws; a small output may exceed it by three standard deviations of the count.
    mean = tolerance.integer_share * c.numel()
    allowed = int(mean + 3 * math.sqrt(mean) + 1) if tolerance.integer_slack else 0
    # Within the slack only the share counts: a single difference of one would otherwise always stand at the limit.
    beyond = largest > tolerance.integer_slack
    ratio = math.inf if not allowed else largest / tolerance.integer_slack if beyond else wrong / allowed
    if ratio > 1:
        place = "its integers" if beyond else "the number of integers that differ"
        slack = tolerance.integer_slack if beyond else 0
        return Wrongness(index, c, y, y, tile, Measure.INTEGER, ratio, place, slack=slack)
    return Verdict(ratio, f"output {index}: {wrong} of {c.numel()} integers differ, {allowed} may")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
