"""A device that only takes time: as long as recorded evaluations took, and with as many verdicts of each kind.

For measuring what surrounds evaluators (engine, store, cluster) at sizes for which nobody has the GPUs. Its figures say nothing about any
kernel, and every one of them is marked SIMULATED.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from evo.evaluation.base import Claim, Effort, Evaluator, WorkItem
from evo.evaluation.simulated import CASE
from evo.records import CaseResult, Configuration, Evaluation, LatencyKind, Stage, Status, TrustLevel, content_id

_P90 = NormalDist().inv_cdf(0.9)

_STAGES: Mapping[Status, Stage] = {
    Status.REJECTED: Stage.LINT,
    Status.COMPILE_ERROR: Stage.COMPILE,
    Status.OUT_OF_RESOURCES: Stage.COMPILE,
    Status.TIMEOUT: Stage.GATE,
    Status.RUNTIME_ERROR: Stage.GATE,
    Status.WRONG_VALUES: Stage.GATE,
}
"""How far a variant of each verdict comes."""

SPREAD = 0.15
"""Standard deviation of ln(speedup) over variants that pass."""


@dataclass(frozen=True)
class DeviceRecord:
    """What recorded evaluations took and what came of them.

    Attributes:
        name: The recorded device.
        origin: Where the figures are from.
        threads: Evaluations at a time.
        median_s, p90_s: Wall seconds of one evaluation; a lognormal distribution has these two quantiles.
        gpu_s: Mean device seconds of one evaluation.
        noise: Relative half-width of the A/A interval.
        shares: Status → share of verdicts; they add up to 1.
    """

    name: str
    origin: str
    threads: int
    median_s: float
    p90_s: float
    gpu_s: float
    noise: float
    shares: Mapping[Status, float]

    def __post_init__(self) -> None:
        if not 0 < self.median_s <= self.p90_s or not math.isclose(math.fsum(self.shares.values()), 1.0, abs_tol=1e-6):
            raise ValueError(f"{self.name}: median {self.median_s} s, 90 % below {self.p90_s} s, shares {dict(self.shares)}")
        if unknown := set(self.shares) - {Status.PASSED, *_STAGES}:
            raise ValueError(f"{self.name}: no verdict of its own: {', '.join(sorted(unknown))}")

    @classmethod
    def from_results(cls, results: Mapping[str, Any], origin: str) -> DeviceRecord:
        """From what `triton-evolve bench evaluator --out` wrote (the JSON file)."""
        counts: dict[Status, int] = {}
        for verdicts in results["verdicts"].values():
            for status, count in verdicts.items():
                counts[Status(status)] = counts.get(Status(status), 0) + count
        total = sum(counts.values())
        return cls(
            name=results["device"],
            origin=origin,
            threads=results["threads"],
            median_s=results["wall_s"]["median"],
            p90_s=results["wall_s"]["p90"],
            gpu_s=results["device_share"] * results["window_s"] / results["candidates"],
            noise=results["noise_floor"],
            shares={status: count / total for status, count in counts.items()},
        )

    @property
    def sigma(self) -> float:
        """Standard deviation of ln(seconds)."""
        return math.log(self.p90_s / self.median_s) / _P90

    @property
    def mean_s(self) -> float:
        """Mean wall seconds of one evaluation."""
        return self.median_s * math.exp(self.sigma**2 / 2)


H200 = DeviceRecord(
    name="NVIDIA H200",
    origin="experiments/results/bench_evaluator.json: softmax, 210 untuned candidates in 100 s",
    threads=18,
    median_s=8.833,
    p90_s=13.441,
    gpu_s=0.469,
    noise=0.00455,
    shares={
        Status.PASSED: 130 / 210,
        Status.OUT_OF_RESOURCES: 40 / 210,
        Status.WRONG_VALUES: 25 / 210,
        Status.REJECTED: 8 / 210,
        Status.COMPILE_ERROR: 7 / 210,
    },
)
"""One H200 with 16 cores: 2.1 untuned candidates a second."""


class SimulatedDevice(Evaluator):
    """Gives verdicts drawn from a record, by seed and source alone; the source is not read.

    Verdicts have trust INTERPRETED, latencies are SIMULATED, the device is ``simulated``. What is judged beside no baseline passes.

    Args:
        record: What to draw from.
        seed: Equal seeds give equal verdicts.
        pace: Every evaluation takes its recorded time divided by this.
        sleep: What spends the seconds.
    """

    def __init__(
        self,
        record: DeviceRecord = H200,
        *,
        seed: int = 0,
        pace: float = 1.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if pace <= 0:
            raise ValueError(f"pace {pace}; allowed: above 0")
        self.record = record
        self._seed = seed
        self._pace = pace
        self._sleep = sleep
        self._statuses = list(record.shares)
        self._limits = np.cumsum([record.shares[status] for status in self._statuses])

    @property
    def device(self) -> str:
        """``simulated``."""
        return "simulated"

    @property
    def concurrency(self) -> int:
        """As recorded."""
        return self.record.threads

    def evaluate(self, item: WorkItem, claim: Claim) -> Evaluation:
        """See `Evaluator.evaluate`."""
        self._sleep(self.seconds(item))
        return self.verdict(item, claim(self.plan_hash(item), item.variant.variant_id) if item.effort is Effort.SEARCH else None)

    def seconds(self, item: WorkItem) -> float:
        """How long an evaluation takes."""
        return self.record.median_s * math.exp(self.record.sigma * self._draws(item)[0]) / self._pace

    def plan_hash(self, item: WorkItem) -> str:
        """What the evaluation claims: no two variants have one plan."""
        return content_id("simulated plan", item.variant.variant_id)

    def verdict(self, item: WorkItem, owner: str | None) -> Evaluation:
        """What comes of it, given the variant that has the plan already, if another one has."""
        verdict = self._verdict(item, owner)
        return dataclasses.replace(verdict, wall_s=self.seconds(item), gpu_s=self.record.gpu_s / self._pace)

    def _verdict(self, item: WorkItem, owner: str | None) -> Evaluation:
        variant_id, plan_hash = item.variant.variant_id, self.plan_hash(item)
        if owner is not None:
            status, stage = Status.DUPLICATE, Stage.COMPILE
            return Evaluation(variant_id, status, stage, self.device, plan_hash, duplicate_of=owner)
        _, drawn, quality = self._draws(item)
        place = int(np.searchsorted(self._limits, NormalDist().cdf(drawn), side="right"))
        status = self._statuses[min(place, len(self._statuses) - 1)]
        if status is not Status.PASSED and item.baseline is not None:
            message = f"{status}: drawn from the record of {self.record.name}"
            signature = f"{status} {int(1e6 * abs(quality)) % 50}"
            return Evaluation(variant_id, status, _STAGES[status], self.device, plan_hash, message=message, signature=signature)
        speedup = math.exp(SPREAD * quality) if item.baseline is not None else 1.0
        low, high = speedup * math.exp(-self.record.noise), speedup * math.exp(self.record.noise)
        case = CaseResult(CASE, Configuration(), 0.5, 100 / speedup, 100.0, speedup, low, high, 0, 1024 + int(1e3 * abs(drawn)))
        return Evaluation(
            variant_id,
            Status.PASSED,
            Stage.VERIFY if item.effort is Effort.VERIFY else Stage.TIME,
            self.device,
            plan_hash,
            TrustLevel.INTERPRETED,
            LatencyKind.SIMULATED,
            fitness=low,
            cases=(case,),
            noise_floor=self.record.noise,
        )

    def close(self) -> None:
        """Nothing is open."""

    def _draws(self, item: WorkItem) -> tuple[float, float, float]:
        """Three standard normal numbers of a variant: for its seconds, its status and its quality."""
        drawn = np.random.default_rng([self._seed, int(item.variant.variant_id, 16)]).standard_normal(3)
        return float(drawn[0]), float(drawn[1]), float(drawn[2])
