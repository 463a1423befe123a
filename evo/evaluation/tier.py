"""The contract of a tier: where and how candidates are run, checked and timed. The ladder (`evo.evaluation.ladder`) is the same for all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

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
    """A candidate beside the baseline. Latencies are medians in microseconds; `log_ratios` = ln(baseline / candidate) per pair,
    empty where latencies are modelled."""

    latency_us: float
    baseline_us: float
    log_ratios: tuple[float, ...]


class Tier(ABC):
    """Runs candidates. Owns its processes until `close`; not thread-safe."""

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

    @abstractmethod
    def gate_cases(self, task: Task) -> tuple[Case, ...]:
        """Cases every variant is checked on, cheapest first."""

    @abstractmethod
    def check(self, task: Task, candidate: Candidate, draws: Sequence[Draw]) -> Checked | Failure:
        """Runs the candidate on the inputs of each draw and judges its outputs in another process; the first failure ends it.

        Seeds are public: the tier mixes them with a secret of its own.
        """

    @abstractmethod
    def latency_us(self, task: Task, candidate: Candidate) -> float | Failure:
        """A quick latency, for tuning; samples taken here never enter a fitness."""

    @abstractmethod
    def compare(self, task: Task, candidate: Candidate, baseline: Candidate, *, pairs: int, incumbent: float) -> Timing | Failure:
        """Times candidate and baseline side by side. May stop early where a speedup of `incumbent` is out of reach (0: never)."""

    @abstractmethod
    def noise_floor(self) -> float:
        """Relative half-width of the A/A interval measured so far; 0 where latencies are modelled."""

    @abstractmethod
    def fresh(self) -> None:
        """Replaces worker processes, so that what follows runs in new ones (verification)."""

    @abstractmethod
    def close(self) -> None:
        """Ends processes. Idempotent."""
