"""Turns paired log ratios into speedups with bootstrap intervals; the lower bound over all cases is the fitness.

The statistic of one case is the median of its log ratios ln(baseline / candidate): half of the pairs may be disturbed by
other work before it moves, where a mean moves with the first one. Over cases the medians are averaged, which is the geometric
mean of the speedups. Pairs are resampled within each case, never across cases, because cases differ in level and in noise;
the interval holds the middle 95 % of the resampled statistics (the percentile bootstrap of Efron, 1979).

Pairs alone say too little: where buffers and code lie in memory shifts a kernel for as long as they lie there, by half a percent on a
quiet device, and a bootstrap over pairs of one placement never sees it. So pairs are taken in *blocks*, each with other memory, and
`fitness_interval` is at least as wide as two more estimates allow: the spread between equal kernels in blocks of their own (the A/A
noise of the session, `NoiseFloor`), and the spread between the candidate's own blocks. Both are small samples of a variance, so
their widths are quantiles of Student's t, at 99.5 % one-sided: of 200 copies of the baseline one is taken for an improvement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
RESAMPLES = 2000
MIN_OWN_FREEDOM = 4
"""Degrees of freedom under which the spread of the candidate's own blocks says nothing: its quantiles would be many times the spread."""

_STUDENT = (
    63.66, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055, 3.012, 2.977, 2.947,
    2.921, 2.898, 2.878, 2.861, 2.845, 2.831, 2.819, 2.807, 2.797, 2.787, 2.779, 2.771, 2.763, 2.756, 2.750,
)  # fmt: skip
"""99.5 % quantiles of Student's t for 1 to 30 degrees of freedom."""
_NORMAL = 2.576


@dataclass(frozen=True)
class NoiseFloor:
    """What equal kernels on both sides showed on one case since the evaluator was started.

    Attributes:
        spread: Standard deviation of ln(speedup) between blocks of pairs, each with other memory.
        blocks: How many were measured.
        half_width: Half of the 95 % interval of all their pairs together, relative.
        latency_us: Of the kernel, microseconds; 0 where it is not known.
    """

    spread: float
    blocks: int
    half_width: float
    latency_us: float = 0.0

    @classmethod
    def of(cls, blocks: Sequence[Sequence[float]], seed: int, latency_us: float = 0.0) -> NoiseFloor:
        """From the log ratios of A/A pairs, block by block (at least two)."""
        centres = [float(np.median(block)) for block in blocks]
        pooled = [ratio for block in blocks for ratio in block]
        return cls(float(np.std(centres, ddof=1)), len(blocks), case_interval(pooled, seed).half_width, latency_us)


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


def student(freedom: int) -> float:
    """The 99.5 % quantile of Student's t."""
    if freedom < 1:
        raise ValueError(f"Student's t needs at least one degree of freedom, given {freedom}")
    return _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else _NORMAL + 4.9 / freedom


def fitness_interval(
    blocks_per_case: Sequence[Sequence[Sequence[float]]],
    floors: Sequence[NoiseFloor | None],
    seed: int,
    resamples: int = RESAMPLES,
) -> Interval:
    """The geometric mean of speedups over cases, with an interval that holds what placement does too.

    Args:
        blocks_per_case: Per case, blocks of log ratios; each block was measured in memory of its own.
        floors: The A/A noise per case, None where it was not measured.
        seed, resamples: Of the bootstrap.

    Raises:
        ValueError: As `geometric_mean_interval`.
    """
    pooled = [[ratio for block in blocks for ratio in block] for blocks in blocks_per_case]
    plain = geometric_mean_interval(pooled, seed, resamples)
    width = max(_floor_width(blocks_per_case, floors), _own_width(blocks_per_case))
    return Interval(plain.point, min(plain.low, plain.point * math.exp(-width)), max(plain.high, plain.point * math.exp(width)))


def _floor_width(blocks_per_case: Sequence[Sequence[Sequence[float]]], floors: Sequence[NoiseFloor | None]) -> float:
    known = [(blocks, floor) for blocks, floor in zip(blocks_per_case, floors, strict=True) if floor is not None]
    if not known:
        return 0.0
    variance = math.fsum(floor.spread**2 / effective_blocks(blocks) for blocks, floor in known)
    # Where only some cases have a floor, the others are taken to be as noisy as these.
    share = len(blocks_per_case) / len(known)
    return student(sum(floor.blocks - 1 for _, floor in known)) * math.sqrt(variance * share) / len(blocks_per_case)


def _own_width(blocks_per_case: Sequence[Sequence[Sequence[float]]]) -> float:
    freedom = sum(len(blocks) - 1 for blocks in blocks_per_case)
    if freedom < MIN_OWN_FREEDOM or any(len(blocks) < 2 for blocks in blocks_per_case):
        return 0.0
    variance = 0.0
    for blocks in blocks_per_case:
        centres = [float(np.median(block)) for block in blocks]
        variance += float(np.var(centres, ddof=1)) / effective_blocks(blocks)
    return student(freedom) * math.sqrt(variance) / len(blocks_per_case)


def effective_blocks(blocks: Sequence[Sequence[float]]) -> float:
    """As how many equal blocks these count, larger ones weighing more."""
    sizes = [len(block) for block in blocks]
    return sum(sizes) ** 2 / sum(size**2 for size in sizes)


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
