"""The figures by which the field compares itself, over all problems of a suite, each with its interval.

A share's interval is Wilson's (1927), a geometric mean's a bootstrap over problems. fast_p is KernelBench's: the share of *all*
problems that are correct and more than p times as fast. Geometric means are over all problems, every failure as 1.0×; a mean over
successes alone, which some report, can only flatter, and is given where it is the suite's own definition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evo.plain import Record
from evo.suites.base import Against
from evo.suites.rows import Row

THRESHOLDS = (0.0, 0.5, 0.8, 1.0, 1.5, 2.0)
"""The p of fast_p."""
FASTER = 1.02
"""A lower bound above this counts as faster."""
RESAMPLES = 2000
_NORMAL = 1.959964


@dataclass(frozen=True)
class Share(Record):
    """A part of some problems, with its 95 % interval."""

    count: int
    of: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """0 of none."""
        return self.count / self.of if self.of else 0.0


def share(count: int, of: int) -> Share:
    """With Wilson's interval, which is also right near 0 and 1."""
    if of == 0:
        return Share(0, 0, 0.0, 1.0)
    p, z2 = count / of, _NORMAL**2 / of
    middle = (p + z2 / 2) / (1 + z2)
    half = _NORMAL * math.sqrt(p * (1 - p) / of + z2 / (4 * of)) / (1 + z2)
    return Share(count, of, max(0.0, middle - half), min(1.0, middle + half))


@dataclass(frozen=True)
class Mean(Record):
    """A mean over problems, with its 95 % bootstrap interval; `over` is how many problems it is over, `measured` how many of them count
    with a figure of their own."""

    point: float
    low: float
    high: float
    over: int
    measured: int


def geometric_mean(speedups: Sequence[float]) -> Mean:
    """Of speedups, of which 0 stands for a failure, and counts as 1.0×."""
    return _mean([value if value > 0 else 1.0 for value in speedups], sum(value > 0 for value in speedups), math.log, math.exp)


def arithmetic_mean(speedups: Sequence[float]) -> Mean:
    """Of those above 0 alone."""
    known = [value for value in speedups if value > 0]
    return _mean(known, len(known), float, float)


def _mean(values: Sequence[float], measured: int, there: Callable[[float], float], back: Callable[[float], float]) -> Mean:
    if not values:
        return Mean(0.0, 0.0, 0.0, 0, 0)
    moved = np.array([there(value) for value in values])
    drawn = np.random.default_rng(0).integers(0, moved.size, size=(RESAMPLES, moved.size))
    low, high = np.quantile(moved[drawn].mean(axis=1), [0.025, 0.975])
    return Mean(back(float(moved.mean())), back(float(low)), back(float(high)), len(values), measured)


def pass_at(rows: Sequence[Row], k: int, estimate: Callable[[int, int, int], float]) -> float | None:
    """Mean over problems of the chance that one of k proposals is correct; None where no problem was sampled so often.

    Args:
        rows: All problems.
        k: At least 1.
        estimate: Of n samples, c correct ones, and k.
    """
    found = [estimate(row.sampled, row.correct, k) for row in rows if row.sampled >= k]
    return math.fsum(found) / len(found) if found else None


def figures(rows: Sequence[Row], against: Against, passing: Mapping[str, float | None]) -> dict[str, Any]:
    """All figures as plain values.

    Args:
        rows: Of all problems of the suite that were to be run.
        against: What the suite compares with.
        passing: k → pass@k.
    """
    count = len(rows)
    verified = [row for row in rows if row.state == "verified"]
    sides = ("kernel",) if against is Against.KERNEL else ("eager", "best")
    return {
        "problems": count,
        "states": {state: sum(row.state == state for row in rows) for state in ("verified", "failed", "refused", "waiting")},
        "trust": {name: sum(row.trust == name for row in verified) for name in ("replayed", "hosted", "interpreted")},
        "call_accuracy": share(sum(row.called for row in rows), count).to_json(),
        "execution_accuracy": share(len(verified), count).to_json(),
        "differs": share(sum(row.differs for row in verified), count).to_json(),
        "faster_on_device": share(sum(row.device_speedup[1] > FASTER for row in verified), count).to_json(),
        "device_geometric_mean": geometric_mean([row.device_speedup[0] for row in rows]).to_json(),
        "own_speedup": arithmetic_mean([row.own_speedup for row in rows]).to_json(),
        "sides": {side: _of_side(rows, side) for side in sides},
        "pass_at_k": dict(passing),
    }


def _of_side(rows: Sequence[Row], side: str) -> dict[str, Any]:
    speedups = [row.over(side) for row in rows]
    return {
        "measured": sum(point > 0 for point, _, _ in speedups),
        "geometric_mean": geometric_mean([point for point, _, _ in speedups]).to_json(),
        "faster": share(sum(low > FASTER for _, low, _ in speedups), len(rows)).to_json(),
        "fast_p": {f"{p:g}": share(_fast(rows, speedups, p), len(rows)).to_json() for p in THRESHOLDS},
    }


def _fast(rows: Sequence[Row], speedups: Sequence[tuple[float, float, float]], p: float) -> int:
    """How many are correct and faster than p; fast_0 is the share of correct ones, measured or not."""
    if p == 0.0:
        return sum(row.state == "verified" for row in rows)
    return sum(point > p for point, _, _ in speedups)
