"""A tier that measures nothing and is as noisy as a GPU: pairs, placement, drift and other work on the machine disturb its latencies."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

from evo.evaluation.statistics import NoiseFloor
from evo.evaluation.tier import Candidate, Checked, Sides, Tier, Timing
from evo.records import Configuration, Failure, LatencyKind, TrustLevel
from evo.tasks.base import Case, Task
from evo.tasks.draws import Draw
from evo.tracing.plan import LaunchPlan

AA_BLOCKS, AA_PAIRS = 5, 8
PLAN = LaunchPlan("3", "cuda:90", (), (), (), (), {"prepare": (), "forward": (), "backward": ()}, None, (), {})


def candidate(name: str, case: Case) -> Candidate:
    return Candidate(name, case, Configuration({}), PLAN, ())


class NoisyTier(Tier):
    """Sources name candidates; ``baseline`` takes 100 µs, others what `speedups` says of them, copies of the baseline the same.

    Args:
        seed: Of all noise.
        pair: Standard deviation of one timing, as a share (so ln of a pair's ratio has √2 times that).
        placement: Standard deviation between equal kernels at one place in memory, for as long as they lie there.
        drift: The clock wanders by about so much in a hundred timings, for both sides alike.
        disturbed: Share of timings that other work on the machine makes 30 % longer.
    """

    def __init__(
        self, seed: int, *, pair: float, placement: float, drift: float, disturbed: float = 0.01, speedups: dict[str, float]
    ) -> None:
        self._random = np.random.default_rng(seed)
        self._pair, self._placement, self._drift, self._disturbed = pair, placement, drift, disturbed
        self._speedups = speedups
        self._clock = 0.0
        self._lies: dict[tuple[str, str, int], float] = {}
        self._floors: dict[str, NoiseFloor] = {}

    @property
    def device(self) -> str:
        return "noise"

    @property
    def trust(self) -> TrustLevel:
        return TrustLevel.REPLAYED

    @property
    def latency_kind(self) -> LatencyKind:
        return LatencyKind.SIMULATED

    @property
    def gates_on_binaries(self) -> bool:
        return True

    @property
    def gpu_s(self) -> float:
        return 0.0

    def gate_cases(self, task: Task) -> tuple[Case, ...]:
        return task.training_cases

    def check(self, task: Task, candidate: Candidate, draws: Sequence[Draw]) -> Checked | Failure:
        return Checked(0.0, 0)

    def latency_us(self, task: Task, candidate: Candidate, worth_us: float = math.inf) -> float | Failure:
        return 100.0

    def compare(self, task: Task, candidate: Candidate, baseline: Candidate, *, pairs: int, incumbent: float) -> Timing | Failure:
        return self._block(candidate.source, candidate.case.name, pairs, 0)

    def compare_all(self, task: Task, sides: Sequence[Sides], *, pairs: int, placement: int) -> list[Timing] | Failure:
        for _, baseline in sides:
            if (name := baseline.case.name) not in self._floors:
                blocks = [self._block(f"copy {place}", name, AA_PAIRS, place).log_ratios for place in range(AA_BLOCKS)]
                self._floors[name] = NoiseFloor.of(blocks, seed=0)
        return [self._block(ours.source, ours.case.name, pairs, placement) for ours, _ in sides]

    def noise_of(self, task: Task, case: Case) -> NoiseFloor | None:
        return self._floors.get(case.name)

    def noise_floor(self) -> float:
        return max((floor.half_width for floor in self._floors.values()), default=0.0)

    def fresh(self) -> None:
        self._lies.clear()

    def close(self) -> None:
        pass

    def _block(self, source: str, case: str, pairs: int, placement: int) -> Timing:
        mine, other = [], []
        for _ in range(pairs):
            for is_candidate in self._random.permutation([True, False]):
                (mine if is_candidate else other).append(self._time(source if is_candidate else "baseline", case, placement))
        ratios = tuple(math.log(b / a) for a, b in zip(mine, other, strict=True))
        return Timing(statistics.median(mine), statistics.median(other), ratios)

    def _time(self, source: str, case: str, placement: int) -> float:
        # Half of the variance is each side's.
        lie = self._lies.setdefault((source, case, placement), self._random.normal(0, self._placement / math.sqrt(2)))
        self._clock += self._random.normal(0, self._drift / 10)
        noise = self._random.normal(0, self._pair) + (0.3 if self._random.random() < self._disturbed else 0.0)
        return 100.0 / self._speedups.get(source, 1.0) * math.exp(lie + self._clock + noise)
