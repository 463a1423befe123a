"""What is found out about a variant: configurations, trials, results per case, and the verdict; part of `evo.records`."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Self

from evo.plain import Record

MAX_MESSAGE = 8000
MAX_SIGNATURE = 300
"""Characters of a failure's message and signature; what is longer is cut."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
KnobValue = int | float | bool | str
"""A value of one knob of a configuration."""


class Stage(StrEnum):
    """How far an evaluation came, in order; failed variants rank by it."""

    LINT = "lint"
    TRACE = "trace"
    COMPILE = "compile"
    GATE = "gate"
    TIME = "time"
    VERIFY = "verify"

    @property
    def rank(self) -> int:
        """Position in the ladder, 0 for LINT."""
        return list(Stage).index(self)


class Status(StrEnum):
    """The closed set of verdicts on a variant."""

    PASSED = "passed"
    DUPLICATE = "duplicate"
    REJECTED = "rejected"
    TRACE_ERROR = "trace_error"
    UNTRACEABLE = "untraceable"
    NONDETERMINISTIC = "nondeterministic"
    COMPILE_ERROR = "compile_error"
    OUT_OF_RESOURCES = "out_of_resources"
    WRONG_STRUCTURE = "wrong_structure"
    WRONG_VALUES = "wrong_values"
    GUARD_VIOLATION = "guard_violation"
    RUNTIME_ERROR = "runtime_error"
    TIMEOUT = "timeout"


class TrustLevel(StrEnum):
    """How strongly a verdict is isolated from candidate code: replayed > hosted > interpreted."""

    REPLAYED = "replayed"
    HOSTED = "hosted"
    INTERPRETED = "interpreted"


class LatencyKind(StrEnum):
    """A modelled estimate is never shown, stored or exported as a measured figure."""

    MEASURED = "measured"
    MODELLED = "modelled"
    SIMULATED = "simulated"


def _printable(text: str, limit: int) -> str:
    if not isinstance(text, str):
        raise ValueError(f"message and signature are text, given {type(text).__name__}")
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text[:limit])[:limit]


class Configuration(Mapping[str, KnobValue]):
    """An immutable, hashable assignment of knobs, e.g. ``{"BLOCK": 1024, "num_warps": 4}``; order never matters."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, KnobValue] | None = None) -> None:
        self._values = MappingProxyType(dict(sorted((values or {}).items())))

    def __getitem__(self, key: str) -> KnobValue:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and dict(self._values) == dict(other)

    def __repr__(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self._values.items()) or "(no knobs)"

    def __reduce__(self) -> tuple[type[Configuration], tuple[dict[str, KnobValue]]]:
        return Configuration, (dict(self._values),)

    @property
    def key(self) -> str:
        """Canonical JSON text; equal configurations have equal keys."""
        return json.dumps(dict(self._values), sort_keys=True)


@dataclasses.dataclass(frozen=True)
class KernelUse(Record):
    """What one launch takes of the device, read from the compiled kernel.

    Attributes:
        kernel: Its name.
        programs: Of its grid.
        num_warps: Per program.
        registers: Per thread.
        spill_bytes: Local memory per thread.
        shared_bytes: Per program.
        occupancy: Resident warps of a multiprocessor as a share of what it can hold, as far as the grid fills it.
    """

    kernel: str
    programs: int
    num_warps: int
    registers: int
    spill_bytes: int
    shared_bytes: int
    occupancy: float


@dataclasses.dataclass(frozen=True)
class CaseResult(Record):
    """How a variant did on one case, in its best configuration for it.

    Attributes:
        case: Case name.
        configuration: Knob values used.
        error_ratio: Worst of the tolerance measures as a share of what is allowed (≤ 1 passes); see `evo.evaluation.tolerance`.
        latency_us, baseline_us: Device latency of the variant and of the baseline, median, microseconds.
        speedup, speedup_low, speedup_high: baseline / variant with its 95 % bootstrap interval.
        pairs: Timed A/B pairs; 0 for modelled and simulated latencies.
        peak_bytes: Bytes allocated beyond the inputs.
        log_ratios: ln(baseline / variant) of every pair, for resampling.
        kernels: What its launches take, in order; empty where nothing was compiled, and in records from before they were kept.
        memory_us, compute_us: Data-sheet time of the target for the bytes and for the operations that the case needs at least;
            0 where unknown.
    """

    case: str
    configuration: Configuration
    error_ratio: float
    latency_us: float
    baseline_us: float
    speedup: float
    speedup_low: float
    speedup_high: float
    pairs: int
    peak_bytes: int
    log_ratios: tuple[float, ...] = ()
    kernels: tuple[KernelUse, ...] = ()
    memory_us: float = 0.0
    compute_us: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "configuration", Configuration(self.configuration))
        object.__setattr__(self, "log_ratios", tuple(self.log_ratios))
        uses = (item if isinstance(item, KernelUse) else KernelUse.from_json(item) for item in self.kernels)
        object.__setattr__(self, "kernels", tuple(uses))
        if not self.speedup_low <= self.speedup <= self.speedup_high:
            raise ValueError(f"case {self.case}: interval [{self.speedup_low}, {self.speedup_high}] lacks {self.speedup}")
        if self.latency_us <= 0 or self.baseline_us <= 0 or self.pairs < 0:
            raise ValueError(f"case {self.case}: latencies must be positive and pairs not negative")

    @property
    def roofline_us(self) -> float:
        """What no kernel for this case can be faster than on the target, by its data sheet; 0 where unknown."""
        return max(self.memory_us, self.compute_us)


@dataclasses.dataclass(frozen=True)
class Trial(Record):
    """One Optuna configuration of one variant on one case.

    Attributes:
        latency_us: None unless the status is PASSED.
    """

    case: str
    configuration: Configuration
    status: Status
    latency_us: float | None
    message: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "configuration", Configuration(self.configuration))
        object.__setattr__(self, "status", Status(self.status))
        if (self.latency_us is not None) != (self.status is Status.PASSED):
            raise ValueError(f"trial {self.configuration}: a latency if and only if PASSED, not {self.status}")


@dataclasses.dataclass(frozen=True)
class Failure(Record):
    """Why a variant did not pass, as one room tells it to the next; it becomes an Evaluation.

    Attributes:
        status: Any but PASSED and DUPLICATE.
        stage: Where it failed.
        message: What a person or a model can act on: case, place, expected and got, source line, hint.
        signature: Short, stable text that equal failures share (error kind, stage, place).
    """

    status: Status
    stage: Stage
    message: str
    signature: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", Status(self.status))
        object.__setattr__(self, "stage", Stage(self.stage))
        if self.status in (Status.PASSED, Status.DUPLICATE):
            raise ValueError(f"a Failure cannot be {self.status}")
        # Much of the text was written by candidate code: it must be fit for a terminal, a prompt and a store.
        object.__setattr__(self, "message", _printable(self.message, MAX_MESSAGE))
        object.__setattr__(self, "signature", _printable(self.signature, MAX_SIGNATURE))


@dataclasses.dataclass(frozen=True)
class Evaluation(Record):
    """The verdict on one variant on one device model.

    Attributes:
        variant_id: Whose verdict.
        status: PASSED, or why not.
        stage: The last stage entered.
        device: Device model, e.g. ``NVIDIA H200`` or ``cuda:90 (modelled)``.
        plan_hash: Of a search, over the plans of the training cases in the declared configuration and what tuning may choose from; of a
            verification, over the plans in the chosen configurations. Empty before TRACE is through.
        trust: None unless PASSED.
        latency_kind: None unless PASSED.
        fitness: Lower bound of the 95 % interval of the geometric mean speedup over cases; 0 unless PASSED.
        message: What a person or a model can act on: case, place, expected and got, source line, hint.
        signature: Short, stable text that equal failures share (error kind, stage, place), empty if PASSED.
        cases: Results per training case; empty unless PASSED.
        trials: Every configuration tried.
        duplicate_of: Variant id that launched the same plans; set if and only if DUPLICATE.
        wall_s, gpu_s: Seconds spent.
        noise_floor: Relative half-width of the session's A/A interval; 0 where nothing was timed.
        checks: What a verification checked besides values and time, e.g. ``memcheck``, or ``memcheck not applied: REASON``.
    """

    variant_id: str
    status: Status
    stage: Stage
    device: str
    plan_hash: str = ""
    trust: TrustLevel | None = None
    latency_kind: LatencyKind | None = None
    fitness: float = 0.0
    message: str = ""
    signature: str = ""
    cases: tuple[CaseResult, ...] = ()
    trials: tuple[Trial, ...] = ()
    duplicate_of: str | None = None
    wall_s: float = 0.0
    gpu_s: float = 0.0
    noise_floor: float = 0.0
    checks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "checks", tuple(self.checks))
        passed = self.status is Status.PASSED
        if passed != (self.trust is not None and self.latency_kind is not None and bool(self.cases)):
            raise ValueError(f"{self.status}: trust level, latency kind and cases belong to PASSED and to nothing else")
        if passed != (self.fitness > 0) or not math.isfinite(self.fitness):
            raise ValueError(f"{self.status}: fitness {self.fitness} is positive if and only if PASSED")
        if (self.duplicate_of is not None) != (self.status is Status.DUPLICATE):
            raise ValueError(f"{self.status}: duplicate_of is set if and only if DUPLICATE")
        if self.status is Status.DUPLICATE and not self.plan_hash:
            raise ValueError("a DUPLICATE has a plan hash")

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
        return cls(
            **{
                **data,
                "status": Status(data["status"]),
                "stage": Stage(data["stage"]),
                "trust": None if data["trust"] is None else TrustLevel(data["trust"]),
                "latency_kind": None if data["latency_kind"] is None else LatencyKind(data["latency_kind"]),
                "cases": tuple(CaseResult.from_json(item) for item in data["cases"]),
                "trials": tuple(Trial.from_json(item) for item in data["trials"]),
            }
        )

    @property
    def latency_us(self) -> float:
        """Geometric mean of device latency over cases, microseconds; infinite unless PASSED."""
        return geometric_mean([case.latency_us for case in self.cases])

    @property
    def speedup(self) -> float:
        """Geometric mean of speedups over cases (point estimate); 0 unless PASSED."""
        return geometric_mean([case.speedup for case in self.cases]) if self.cases else 0.0

    @property
    def error_ratio(self) -> float:
        """Worst error ratio over cases; infinite unless PASSED."""
        return max((case.error_ratio for case in self.cases), default=math.inf)

    @property
    def peak_bytes(self) -> int:
        """Largest scratch and output memory over cases, bytes."""
        return max((case.peak_bytes for case in self.cases), default=0)


def geometric_mean(values: list[float]) -> float:
    """Of positive values; infinite for none."""
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else math.inf
