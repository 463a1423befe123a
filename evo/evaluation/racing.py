"""Times a candidate against the baseline in rounds over all cases, and stops when it cannot reach the incumbent any more.

A race has levels, e.g. 8, 32 and 128 pairs per case. After each level but the last, a candidate whose upper bound lies below the
incumbent's fitness leaves; who reaches the last level has the full count, so ranked contenders have equal counts. The bound is one-sided
at 99.5 % (Student's t over what the pairs and the placement leave open), so that of a thousand true contenders at most ten are lost at two
looks; and as the incumbent's fitness is itself a lower bound, those are the narrow ones. Where the baseline takes long, the last level
is lower (`bounded`): the relative noise of kernels of milliseconds is small, and 128 pairs of them would be most of what an evaluation
costs. By how much follows from the A/A run of the session, so all variants of a task in it still have equal counts. Pairs that
chose a configuration are not among these: tuning has its own timings.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from evo.evaluation.statistics import Interval, NoiseFloor, effective_blocks, fitness_interval, student
from evo.evaluation.tier import Sides, Timing
from evo.evaluation.turns import Turns
from evo.records import Failure
from evo.tasks.base import Task

MAX_BLOCK = 32
"""Pairs measured in one placement at most: more of them would know one placement better and all placements no better."""
ASSUMED_SPREAD = 0.005
"""Spread between placements where no A/A noise is known."""
LAST_LEVEL_S = 0.25
"""Seconds that both sides of all pairs may take per case, in the mean over cases, before the last level is lowered."""
_MEDIAN_EFFICIENCY = 1.2533
_MAD_TO_SD = 1.4826


@dataclass(frozen=True)
class CaseRace:
    """How a race went on one case: medians over its blocks in microseconds, and ln(baseline / candidate) block by block."""

    latency_us: float
    baseline_us: float
    blocks: tuple[tuple[float, ...], ...]
    floor: NoiseFloor | None

    @property
    def log_ratios(self) -> tuple[float, ...]:
        """Of all pairs."""
        return tuple(itertools.chain.from_iterable(self.blocks))

    def interval(self, seed: int) -> Interval:
        """The speedup on this case; a modelled latency has no spread."""
        if not self.blocks:
            speedup = self.baseline_us / self.latency_us
            return Interval(speedup, speedup, speedup)
        return fitness_interval([self.blocks], [self.floor], seed)


@dataclass(frozen=True)
class Raced:
    """A finished race: cases in the order given; `full` says whether it went to the last level."""

    cases: tuple[CaseRace, ...]
    full: bool

    def interval(self, seed: int) -> Interval:
        """The geometric mean speedup; its lower bound is the fitness."""
        if any(not case.blocks for case in self.cases):
            point = math.exp(math.fsum(math.log(case.baseline_us / case.latency_us) for case in self.cases) / len(self.cases))
            return Interval(point, point, point)
        return fitness_interval([case.blocks for case in self.cases], [case.floor for case in self.cases], seed)


def race(tier: Turns, task: Task, sides: Sequence[Sides], levels: Sequence[int], incumbent: float) -> Raced | Failure:
    """Runs the levels.

    Args:
        tier: Where.
        task: Of the sides.
        sides: Candidate and baseline per case.
        levels: Pairs per case in all at the end of each level, ascending.
        incumbent: Fitness to reach; 0 lets nobody leave early.
    """
    timings: list[list[Timing]] = [[] for _ in sides]
    placement = before = 0
    remaining = list(levels)
    while remaining:
        level = remaining.pop(0)
        for pairs in block_sizes(level - before):
            block = tier.compare_all(task, sides, pairs=pairs, placement=placement)
            if isinstance(block, Failure):
                return block
            for timing, kept in zip(block, timings, strict=True):
                kept.append(timing)
            placement += 1
        before = level
        floors = [tier.noise_of(task, side[0].case) for side in sides]
        remaining = bounded(level, remaining, floors)
        raced = Raced(tuple(map(_case, timings, floors)), not remaining)
        if any(not case.blocks for case in raced.cases):  # modelled: another look would see the same
            return Raced(raced.cases, True)
        if not raced.full and incumbent > 0 and upper_bound(raced.cases) < incumbent:
            return raced
    return raced


def bounded(done: int, levels: Sequence[int], floors: Sequence[NoiseFloor | None]) -> list[int]:
    """The levels still to come, the last one lowered to a power of two times `done` that `LAST_LEVEL_S` allows, or left out.

    Args:
        done: Pairs per case so far.
        levels: Still to come; where there is more than one, nothing changes yet.
        floors: Of the cases.
    """
    seconds = [floor.latency_us * 2e-6 for floor in floors if floor is not None]
    if len(levels) != 1 or not sum(seconds):
        return list(levels)
    affordable = LAST_LEVEL_S * len(seconds) / sum(seconds)
    doublings = math.floor(math.log2(max(1.0, affordable / done)))
    last = min(levels[0], done << doublings)
    return [last] if last > done else []


def block_sizes(pairs: int) -> list[int]:
    """Blocks of at most `MAX_BLOCK` pairs, as equal as can be."""
    count = max(1, -(-pairs // MAX_BLOCK))
    return [pairs // count + (number < pairs % count) for number in range(count)]


def upper_bound(cases: Sequence[CaseRace]) -> float:
    """The geometric mean speedup that these pairs leave open, one-sided at 99.5 %."""
    centre = math.fsum(statistics.median(case.log_ratios) for case in cases) / len(cases)
    variance = 0.0
    for case in cases:
        spread = case.floor.spread if case.floor is not None else ASSUMED_SPREAD
        variance += _pair_variance(case) + spread**2 / effective_blocks(case.blocks)
    freedom = max(1, min(sum(len(case.log_ratios) - 1 for case in cases), _floor_freedom(cases)))
    return math.exp(centre + student(freedom) * math.sqrt(variance) / len(cases))


def _floor_freedom(cases: Sequence[CaseRace]) -> int:
    known = [case.floor.blocks - 1 for case in cases if case.floor is not None]
    return sum(known) if known else 1 << 30


def _pair_variance(case: CaseRace) -> float:
    """Of the median of all pairs, from their spread around it; a median of absolute deviations, as single pairs may be disturbed."""
    ratios = case.log_ratios
    middle = statistics.median(ratios)
    deviation = _MAD_TO_SD * statistics.median(abs(ratio - middle) for ratio in ratios)
    return (_MEDIAN_EFFICIENCY * deviation) ** 2 / len(ratios)


def _case(timings: Sequence[Timing], floor: NoiseFloor | None) -> CaseRace:
    return CaseRace(
        statistics.median(timing.latency_us for timing in timings),
        statistics.median(timing.baseline_us for timing in timings),
        tuple(timing.log_ratios for timing in timings if timing.log_ratios),
        floor,
    )
