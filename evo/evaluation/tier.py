"""The contract of a tier: where and how candidates are run, checked and timed. The ladder (`evo.evaluation.ladder`) is the same for all."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from evo.evaluation.stages import StageClock
from evo.evaluation.statistics import NoiseFloor
from evo.records import Configuration, Failure, LatencyKind, TrustLevel
from evo.tasks.base import Case, Task
from evo.tasks.draws import Draw
from evo.tracing.compiler import Binary
from evo.tracing.plan import LaunchPlan


@dataclass(frozen=True)
class Candidate:
    """A variant on one case in one configuration: its source, its traced plan and the binaries of the plan's kernels (none where the
    tier does not need them for the step at hand)."""

    source: str
    case: Case
    configuration: Configuration
    plan: LaunchPlan
    binaries: tuple[Binary, ...]


@dataclass(frozen=True)
class Checked:
    """A candidate passed the gate. `error_ratio` as in `CaseResult`; `peak_bytes` beyond the inputs."""

    error_ratio: float
    peak_bytes: int


@dataclass(frozen=True)
class Timing:
    """A candidate beside the baseline.

    Attributes:
        latency_us, baseline_us: Medians, microseconds.
        log_ratios: ln(baseline / candidate) per pair, empty where latencies are modelled.
    """

    latency_us: float
    baseline_us: float
    log_ratios: tuple[float, ...]


Sides = tuple[Candidate, Candidate]
"""A candidate and the baseline, on the same case."""


class Tier(ABC):
    """Runs candidates. Owns its processes until `close`; not thread-safe unless `overlaps` says otherwise."""

    @property
    @abstractmethod
    def device(self) -> str:
        """Device model as stored with results."""

    @property
    @abstractmethod
    def trust(self) -> TrustLevel:
        """Of the verdicts of this tier."""

    @property
    @abstractmethod
    def latency_kind(self) -> LatencyKind:
        """Of the latencies of this tier."""

    @property
    @abstractmethod
    def gates_on_binaries(self) -> bool:
        """Whether `check` runs the compiled kernels (else it runs the source, and `binaries` may be empty)."""

    @property
    @abstractmethod
    def gpu_s(self) -> float:
        """GPU seconds used so far."""

    @property
    def gpu_s_of_thread(self) -> float:
        """What calls of this thread added to `gpu_s`; calls that overlap divide the seconds in which they do."""
        return self.clock.my_device_s

    @cached_property
    def clock(self) -> StageClock:
        """Where seconds and counts are kept; its device seconds are this tier's."""
        return StageClock()

    def conditions(self) -> str:
        """Under which clocks and temperatures what was timed since `fresh` was timed, in words; empty where nothing is known."""
        return ""

    def counters(self) -> Mapping[str, int]:
        """What the tier's processes counted."""
        return {}

    @property
    def overlaps(self) -> bool:
        """Whether several threads may call `check_all` at a time. Everything else needs the tier alone."""
        return False

    def announce(self, candidates: Sequence[Candidate]) -> None:
        """Tells of candidates that will be run soon, from any thread: what can be made ready without the device is made ready."""
        return

    @abstractmethod
    def gate_cases(self, task: Task) -> tuple[Case, ...]:
        """Cases every variant is checked on, cheapest first."""

    @abstractmethod
    def check(self, task: Task, candidate: Candidate, draws: Sequence[Draw]) -> Checked | Failure:
        """Runs the candidate on the inputs of each draw and judges its outputs in another process; the first failure ends it.

        Seeds are public: the tier mixes them with a secret of its own.
        """

    def check_all(self, task: Task, asked: Sequence[tuple[Candidate, Sequence[Draw]]]) -> list[Checked] | Failure:
        """`check` on several cases in order, as one request where the tier can; the first failure ends it."""
        passed = []
        for candidate, draws in asked:
            checked = self.check(task, candidate, draws)
            if isinstance(checked, Failure):
                return checked
            passed.append(checked)
        return passed

    @abstractmethod
    def latency_us(self, task: Task, candidate: Candidate, worth_us: float = math.inf) -> float | Failure:
        """A quick latency, for tuning; samples taken here never enter a fitness.

        Args:
            task: Of the candidate.
            candidate: Its binaries must be there.
            worth_us: A latency beyond it may be rough: a first look is enough to tell.
        """

    @abstractmethod
    def compare(self, task: Task, candidate: Candidate, baseline: Candidate, *, pairs: int, incumbent: float) -> Timing | Failure:
        """Times candidate and baseline side by side. May stop early where a speedup of `incumbent` is out of reach (0: never)."""

    def compare_all(self, task: Task, sides: Sequence[Sides], *, pairs: int, placement: int) -> list[Timing] | Failure:
        """`compare` on several cases, `pairs` each, as one request where the tier can.

        Args:
            task: Of all sides.
            sides: Candidate and baseline per case.
            pairs: Of each case.
            placement: Timings with different numbers use different memory, those with the same number share it where they can.
        """
        timings = []
        for candidate, baseline in sides:
            timing = self.compare(task, candidate, baseline, pairs=pairs, incumbent=0.0)
            if isinstance(timing, Failure):
                return timing
            timings.append(timing)
        return timings

    def noise_of(self, task: Task, case: Case) -> NoiseFloor | None:
        """The A/A noise of a case measured since the tier was made; None where nothing was timed."""
        return None

    @abstractmethod
    def noise_floor(self) -> float:
        """Relative half-width of the A/A interval measured so far; 0 where latencies are modelled."""

    @abstractmethod
    def fresh(self) -> None:
        """What follows runs in new worker processes (verification), until `settle`."""

    def settle(self) -> None:
        """Ends what `fresh` began."""
        return

    @abstractmethod
    def close(self) -> None:
        """Ends processes. Idempotent."""
