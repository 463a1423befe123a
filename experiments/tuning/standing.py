"""Figures of replayed courses: medians and quartiles over seeds, per kernel and strategy, and the target's verdict."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from evo.records import Configuration
from experiments.tuning.grid import Grid
from experiments.tuning.strategies import QUICK, WITHIN, Course, budget, compile_seconds, gpu_seconds


def quartiles(values: Sequence[float]) -> list[float]:
    """Lower quartile, median and upper quartile, each one of the values (infinite ones are greater than all)."""
    ordered = sorted(values)
    return [ordered[round(part * (len(ordered) - 1))] for part in (0.25, 0.5, 0.75)]


def standing(grid: Grid, courses: Sequence[Course], share: float) -> dict[str, Any]:
    """One strategy on one grid, over its seeds.

    Args:
        grid: The truth.
        courses: Of one strategy, one per seed.
        share: Of the valid configurations, as trials.
    """
    trials = budget(grid, share)
    reached = quartiles([item.reached for item in courses])
    quick = [quick_gpu_s(grid, item) for item in courses]
    return {
        "grid": grid.name,
        "strategy": courses[0].strategy,
        "seeds": [item.seed for item in courses],
        "trials_allowed": trials,
        "trials_until_near": [None if math.isinf(value) else value for value in reached],
        "share_until_near": [None if math.isinf(value) else value / len(grid.valid) for value in reached],
        "quality_quick": quartiles([item.at(QUICK) for item in courses]),
        "quality_end": quartiles([item.at(trials) for item in courses]),
        "near_at_end": sum(item.at(trials) * (1 + WITHIN) >= 1 for item in courses),
        "median_near": statistics.median_low([item.at(trials) for item in courses]) * (1 + WITHIN) >= 1,
        "quick_gpu_s": quartiles(quick),
        "whole_gpu_s": quartiles([gpu_seconds(grid, item.tried, chosen_after(grid, item, trials)) for item in courses]),
        "compile_s": compile_seconds(grid, trials),
    }


def chosen_after(grid: Grid, item: Course, trials: int) -> Configuration | None:
    """The configuration that a course would choose, by the truth of its quality."""
    quality = item.at(trials)
    if not quality:
        return None
    return min(item.tried[:trials], key=lambda tried: abs(grid.best_us / (grid.latencies[tried] or math.inf) - quality))


def quick_gpu_s(grid: Grid, item: Course) -> float:
    """GPU seconds of a quick tune: its first trials timed, the chosen one gated."""
    return gpu_seconds(grid, item.tried[:QUICK], chosen_after(grid, item, QUICK))


def standings(grids: Sequence[Grid], courses: Sequence[Course], share: float) -> list[dict[str, Any]]:
    """By grid, then by strategy, in order of first appearance."""
    found = []
    for grid in grids:
        mine = [item for item in courses if item.grid == grid.name]
        for strategy in dict.fromkeys(item.strategy for item in mine):
            found.append(standing(grid, [item for item in mine if item.strategy == strategy], share))
    return found


def overall(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per strategy: on how many grids it is near the best in the median, and medians over grids; the best first."""
    found = []
    for strategy in dict.fromkeys(row["strategy"] for row in rows):
        mine = [row for row in rows if row["strategy"] == strategy]
        found.append(
            {
                "strategy": strategy,
                "grids": len(mine),
                "near": sum(row["median_near"] for row in mine),
                "runs": sum(len(row["seeds"]) for row in mine),
                "runs_near": sum(row["near_at_end"] for row in mine),
                "quality_quick": statistics.median(row["quality_quick"][1] for row in mine),
                "quality_end": statistics.median(row["quality_end"][1] for row in mine),
                "worst_end": min(row["quality_end"][1] for row in mine),
                "quick_gpu_s": statistics.median(row["quick_gpu_s"][1] for row in mine),
            }
        )
    return sorted(found, key=lambda row: (-row["near"], -row["runs_near"]))
