"""Describes where an output is wrong, in words and a small map that a person or a model can act on."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import torch

from evo.evaluation.tiling import ElementAllowance, errors, row_norms, special_mask, tiles

MAP_ROWS, MAP_COLUMNS = 8, 32
SPREAD_RELATIVE = 2e-2
"""An error over most rows that is smaller than this share of the output is called lost precision rather than a wrong result."""


class Measure(StrEnum):
    """Which test an output failed."""

    SPECIAL = "special"
    FLOAT = "float"
    INTEGER = "integer"


@dataclass(frozen=True)
class Wrongness:
    """An output that failed, with what counts as wrong in it.

    Attributes:
        index: Position among the flattened outputs.
        candidate, exact, reference: What was got, the oracle's answer, and the reference's in the task's own dtypes.
        tile: Elements per tile, see `evo.evaluation.tiling.tile_size`.
        measure: Which test failed.
        ratio: Worst measure as a multiple of what is allowed.
        place: Where that measure was taken, in words.
        tile_allowed: Largest error norm of each tile (FLOAT).
        element_allowed: How far an element may be off (FLOAT).
        slack: Largest difference of an element (INTEGER).
    """

    index: int
    candidate: torch.Tensor
    exact: torch.Tensor
    reference: torch.Tensor
    tile: int
    measure: Measure
    ratio: float
    place: str
    tile_allowed: torch.Tensor | None = None
    element_allowed: ElementAllowance | None = None
    slack: int = 0


@dataclass
class _Survey:
    """Counts over one pass; a tile is a row of the map."""

    wrong_elements: int = 0
    wrong_rows: int = 0
    rows: int = 0
    worst_at: int = 0
    worst: float = -1.0
    error_square: float = 0.0
    size_square: float = 0.0
    candidate_nonzero: bool = False
    columns: tuple[int, int] | None = None
    cells: set[tuple[int, int]] = field(default_factory=set)


def describe(wrongness: Wrongness) -> tuple[str, str]:
    """The message, and a stable word for the kind of error."""
    survey = _survey(wrongness)
    w, c = wrongness, wrongness.candidate
    kind, hint = _diagnose(w, survey)
    # Not torch's function of that name, whose first call imports sympy for most of a second.
    place = [int(i) for i in np.unravel_index(survey.worst_at, c.shape)]
    got, expected = (item.reshape(-1)[survey.worst_at].item() for item in (c, w.exact))
    by = "" if w.ratio == float("inf") else f", {w.ratio:.3g} times what is allowed (measured over {w.place})"
    lines = [
        f"output {w.index} ({str(c.dtype).removeprefix('torch.')} {list(c.shape)}) is wrong{by}; "
        f"worst at {place}: got {got:.6g}, expected {expected:.6g}. {hint}",
    ]
    if survey.columns is not None:
        first, last = survey.columns
        row = "rows" if c.dim() and c.shape[-1] == w.tile else f"tiles of {w.tile} elements"
        lines.append(
            f"{survey.wrong_elements} of {c.numel()} elements in {survey.wrong_rows} of {survey.rows} {row} are wrong, "
            f"at columns {first} to {last} of {w.tile}."
        )
        lines += _map(w, survey)
    return "\n".join(lines), kind


def _survey(w: Wrongness) -> _Survey:
    survey = _Survey(rows=-(-w.candidate.numel() // w.tile))
    row = 0
    for c, y, r in tiles(w.tile, w.candidate, w.exact, w.reference, device=w.exact.device):
        error, size = errors(c, y)
        severity, wrong = _wrong(w, (c, y, r), row)
        # A last tile may repeat elements, so positions count from the end there.
        start = min(row * w.tile, w.candidate.numel() - c.numel())
        at = int(severity.argmax())
        if float(severity.reshape(-1)[at]) > survey.worst:
            survey.worst, survey.worst_at = float(severity.reshape(-1)[at]), start + at
        survey.error_square += float(error.square().sum())
        survey.size_square += float(size.square().sum())
        survey.candidate_nonzero |= bool((c != 0).any())
        _count(survey, wrong, row, w.tile)
        row += len(c)
    return survey


def _wrong(w: Wrongness, part: tuple[torch.Tensor, torch.Tensor, torch.Tensor], row: int) -> tuple[torch.Tensor, torch.Tensor]:
    """How bad each element is, and which ones count as wrong."""
    c, y, r = part
    if w.measure is Measure.SPECIAL:
        wrong = ~special_mask(c, y, r, w.candidate.dtype)
        return wrong.to(torch.float64), wrong
    error, size = errors(c, y)
    if w.measure is Measure.INTEGER:
        return error, error > w.slack
    assert w.tile_allowed is not None
    assert w.element_allowed is not None
    severity = error / w.element_allowed.of(size, row)
    allowed = w.tile_allowed[row : row + len(c)]
    bad_tile = ~(row_norms(error) <= allowed)
    # Where a tile fails as a whole, its elements above their fair share of the allowance are what to look at.
    share = allowed[:, None] / w.tile**0.5
    return severity, (severity > 1) | (bad_tile[:, None] & (error > share))


def _count(survey: _Survey, wrong: torch.Tensor, row: int, tile: int) -> None:
    found = wrong.nonzero()
    if len(found) == 0:
        return
    survey.wrong_elements += len(found)
    survey.wrong_rows += int(wrong.any(dim=1).sum())
    first, last = int(found[:, 1].min()), int(found[:, 1].max())
    if survey.columns is not None:
        first, last = min(first, survey.columns[0]), max(last, survey.columns[1])
    survey.columns = (first, last)
    rows = (found[:, 0] + row) * min(MAP_ROWS, survey.rows) // survey.rows
    columns = found[:, 1] * min(MAP_COLUMNS, tile) // tile
    for code in torch.unique(rows * MAP_COLUMNS + columns).tolist():
        survey.cells.add((code // MAP_COLUMNS, code % MAP_COLUMNS))


def _map(w: Wrongness, survey: _Survey) -> list[str]:
    height, width = min(MAP_ROWS, survey.rows), min(MAP_COLUMNS, w.tile)
    if height * width < 2:
        return []
    lines = ["".join("#" if (y, x) in survey.cells else "." for x in range(width)) for y in range(height)]
    return ["Map (rows downward, columns to the right, # has wrong elements):", *lines]


def _diagnose(w: Wrongness, survey: _Survey) -> tuple[str, str]:
    if w.measure is Measure.SPECIAL:
        return (
            "nan_or_inf",
            "NaN and infinity must be exactly where the oracle has them; look for 0/0, inf - inf, unwritten memory.",
        )
    if not survey.candidate_nonzero and survey.size_square > 0:
        return "zeros", "The whole output is zero: is the kernel launched over all of it, and does it store its result?"
    if w.measure is Measure.INTEGER:
        return "integers", f"Integers may differ by at most {w.slack} here."
    relative = (survey.error_square / survey.size_square) ** 0.5 if survey.size_square else float("inf")
    if (2 * survey.wrong_rows >= survey.rows and relative < SPREAD_RELATIVE) or survey.columns is None:
        return "precision", (
            f"The error is spread over the output and small (relative {relative:.1e}): precision is lost inside. "
            "tl.dot on float32 uses TF32 unless input_precision='ieee', and on float8 it adds up with few bits on Hopper over more "
            "than max_num_imprecise_acc terms; accumulate in float32."
        )
    if survey.wrong_rows == survey.rows:
        return "all_rows", f"Every row is affected (relative error {relative:.1e})."
    return (
        "some_rows",
        f"Only some rows are affected (relative error over all {relative:.1e}): check masks, offsets and the grid.",
    )
