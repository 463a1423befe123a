"""Turns paired log ratios into speedups with bootstrap intervals; the lower bound over all cases is the fitness.

The statistic of one case is the median of its log ratios ln(baseline / candidate): half of the pairs may be disturbed by
other work before it moves, where a mean moves with the first one. Over cases the medians are averaged, which is the geometric
mean of the speedups. Pairs are resampled within each case, never across cases, because cases differ in level and in noise;
the interval holds the middle 95 % of the resampled statistics (the percentile bootstrap of Efron, 1979).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A speedup (a ratio, 1 = as fast as the baseline) and its 95 % bootstrap interval, low ≤ point ≤ high."""

    point: float
    low: float
    high: float

    @property
    def fitness(self) -> float:
        """The lower bound: what the candidate is at least worth."""
        return self.low

    @property
    def half_width(self) -> float:
        """Half of the interval relative to its point; the noise floor where both sides are the same kernel."""
        return (self.high - self.low) / (2 * self.point)


def geometric_mean_interval(log_ratios_per_case: Sequence[Sequence[float]], seed: int, resamples: int = RESAMPLES) -> Interval:
    """The geometric mean of speedups over cases.

    Args:
        log_ratios_per_case: Per case, ln(baseline / candidate) of every pair. Cases may have different numbers of pairs, and
            count equally. One single ratio (a modelled latency) has no spread and widens nothing.
        seed: Of the resampling; equal arguments give equal intervals.
        resamples: Bootstrap samples, at least 100.

    Raises:
        ValueError: No case, a case without pairs, a ratio that is not finite, or too few resamples.
    """
    cases = _checked(log_ratios_per_case)
    if resamples < 100:
        raise ValueError(f"a 95 % interval needs at least 100 resamples, given {resamples}")
    generator = np.random.default_rng(seed % (1 << 63))
    totals = np.zeros(resamples)
    for ratios in cases:
        drawn = generator.integers(0, ratios.size, size=(resamples, ratios.size))
        totals += np.median(ratios[drawn], axis=1)
    point = math.fsum(float(np.median(ratios)) for ratios in cases) / len(cases)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(totals / len(cases), [tail, 1 - tail])
    # Rounding, or a lopsided sample, can put the point a hair outside of its own resamples.
    return Interval(math.exp(point), math.exp(min(float(low), point)), math.exp(max(float(high), point)))


def case_interval(log_ratios: Sequence[float], seed: int, resamples: int = RESAMPLES) -> Interval:
    """The speedup on one case; see `geometric_mean_interval`."""
    return geometric_mean_interval([log_ratios], seed, resamples)


def _checked(log_ratios_per_case: Sequence[Sequence[float]]) -> list[NDArray[np.float64]]:
    if not log_ratios_per_case:
        raise ValueError("a geometric mean needs at least one case")
    cases = [np.asarray(ratios, dtype=np.float64) for ratios in log_ratios_per_case]
    for index, ratios in enumerate(cases):
        if ratios.ndim != 1 or ratios.size == 0 or not np.isfinite(ratios).all():
            raise ValueError(
                f"case {index}: expected one or more finite log ratios, given {list(log_ratios_per_case[index])[:8]}"
            )
    return cases
