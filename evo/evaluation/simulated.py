"""An evaluator without a device: a deterministic, rugged landscape over what a module's source declares.

For tests of searches and clusters, and for experiments on the search itself. Its figures say nothing about any kernel, and every
one of them is marked SIMULATED.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import math
import re
import time
from collections.abc import Callable, Mapping

import numpy as np

from evo.evaluation.base import Claim, Effort, Evaluator, WorkItem
from evo.knobs import Knobs, read_knobs
from evo.records import (
    CaseResult,
    Configuration,
    Evaluation,
    KnobValue,
    LatencyKind,
    Stage,
    Status,
    Trial,
    TrustLevel,
    content_id,
)
from evo.syntax import module_tree

Features = tuple[tuple[str, KnobValue], ...]
"""Names with values, sorted by name; neighbours in this order (as a ring) interact."""

_STRUCTURE = {"kernels": re.compile(r"^@(?:triton\.)?jit\b", re.M), "loops": re.compile(r"^\s+(?:for|while)\b", re.M)}
_FAILURES = (
    (Status.COMPILE_ERROR, Stage.COMPILE),
    (Status.OUT_OF_RESOURCES, Stage.COMPILE),
    (Status.RUNTIME_ERROR, Stage.GATE),
    (Status.WRONG_VALUES, Stage.GATE),
)
CASE = "simulated"
"""Name of the only case."""


class Landscape:
    """An NK landscape (Kauffman and Levin 1987): each feature's share in the quality depends on its own value and on those of
    its next `epistasis` neighbours, so that changes interact and local optima exist.

    Args:
        seed: Equal seeds give equal landscapes.
        epistasis: K, the number of neighbours; 0 is smooth with one optimum.
        failure_rate: Share of random modules that fail, each because of one pair of neighbouring values. Pairs of plain
            values (False, 0, empty) never fail.
        scale: ln(latency) per unit of quality.
    """

    def __init__(self, seed: int, *, epistasis: int = 3, failure_rate: float = 0.2, scale: float = 6.0) -> None:
        if epistasis < 0 or not 0 <= failure_rate < 1 or scale <= 0:
            raise ValueError(
                f"epistasis {epistasis}, failure_rate {failure_rate}, scale {scale}; allowed: from 0, in [0, 1), above 0"
            )
        self._seed = seed
        self._epistasis = epistasis
        self._failure_rate = failure_rate
        self._scale = scale

    def latency_us(self, features: Features) -> float:
        """Latency in microseconds; 100 at a quality of one half."""
        if not features:
            return 100.0
        ring = (*features, *features[: self._epistasis])
        shares = [self._unit("share", ring[place : place + 1 + self._epistasis]) for place in range(len(features))]
        return 100.0 * math.exp(-self._scale * (math.fsum(shares) / len(shares) - 0.5))

    def failure(self, features: Features) -> tuple[Status, Stage, str] | None:
        """Status, stage and the names of the two features that do not go together, or None."""
        pairs = len(features) - 1
        if pairs < 1 or self._failure_rate == 0:
            return None
        share = 1.0 - (1.0 - self._failure_rate) ** (1.0 / pairs)
        for pair in itertools.pairwise(features):
            if any(value for _, value in pair) and self._unit("fails", pair) < share:
                status, stage = _FAILURES[int(self._unit("how", pair) * len(_FAILURES))]
                return status, stage, f"{pair[0][0]} with {pair[1][0]}"
        return None

    def error_ratio(self, features: Features) -> float:
        """Between 0.1 and 0.7 in four steps."""
        return 0.1 + 0.2 * int(4 * self._unit("error", features[::2]))

    def peak_bytes(self, features: Features) -> int:
        """1 to 8 KiB, in powers of two."""
        return 1024 << int(4 * self._unit("peak", features[1::2]))

    def _unit(self, what: str, features: Features) -> float:
        digest = hashlib.blake2b(repr((self._seed, what, features)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") / 2**64


class SimulatedEvaluator(Evaluator):
    """Judges modules by a landscape over their knobs (`CONFIG`), upper-case flags (``ONLINE = True``), kernels and loops.

    Verdicts are a function of seed and source alone, whoever gives them and in whatever order (but for duplicates, which depend on
    who claimed a plan first). Verdicts have trust INTERPRETED, latencies are SIMULATED, the device is ``simulated``.

    Args:
        seed: Of landscape and noise.
        epistasis, failure_rate: See `Landscape`.
        noise: Standard error of ln(speedup); the interval is 1.96 times that to both sides.
        trials: Configurations tried where a module declares a `SPACE`.
        duration_s: Median seconds an evaluation takes; 0 takes none.
        duration_sigma: Spread of ln(seconds) around it, as real evaluations have long tails.
        sleep: What spends the seconds.
        starts_fail: What is judged beside no baseline may fail too, as it does where modules are generated from nothing.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        epistasis: int = 3,
        failure_rate: float = 0.2,
        noise: float = 0.0,
        trials: int = 8,
        duration_s: float = 0.0,
        duration_sigma: float = 0.5,
        sleep: Callable[[float], None] = time.sleep,
        starts_fail: bool = False,
    ) -> None:
        if noise < 0 or trials < 1 or duration_s < 0 or duration_sigma < 0:
            raise ValueError(f"noise {noise}, trials {trials}, duration {duration_s} ± {duration_sigma}; allowed: not negative")
        self.landscape = Landscape(seed, epistasis=epistasis, failure_rate=failure_rate)
        self._seed = seed
        self._noise = noise
        self._trials = trials
        self._duration_s = duration_s
        self._duration_sigma = duration_sigma
        self._sleep = sleep
        self._starts_fail = starts_fail

    @property
    def device(self) -> str:
        """``simulated``."""
        return "simulated"

    def evaluate(self, item: WorkItem, claim: Claim) -> Evaluation:
        """See `Evaluator.evaluate`."""
        rng = np.random.default_rng([self._seed, item.number, int(item.effort is Effort.VERIFY)])
        seconds = self._duration_s * math.exp(self._duration_sigma * rng.standard_normal())
        if seconds > 0:
            self._sleep(seconds)
        variant_id = item.variant.variant_id
        try:
            knobs, structure = read_knobs(item.variant.source), read_structure(item.variant.source)
        except ValueError as error:
            return self._failed(variant_id, Status.REJECTED, Stage.LINT, "", str(error), "rejected", seconds)
        features = merge(structure, knobs.default)
        plan_hash = content_id(item.variant.task, repr((features, sorted(knobs.space.items()))))
        original = claim(plan_hash, variant_id) if item.effort is Effort.SEARCH else None
        if original is not None:
            status, stage = Status.DUPLICATE, Stage.COMPILE
            return Evaluation(variant_id, status, stage, self.device, plan_hash, duplicate_of=original, wall_s=seconds)
        may_fail = item.baseline is not None or self._starts_fail
        failure = self.landscape.failure(features) if may_fail else None
        if failure is not None:
            status, stage, where = failure
            message = f"{status}: {where} do not go together"
            return self._failed(variant_id, status, stage, plan_hash, message, f"{status} {where}", seconds)
        return self._passed(item, knobs, structure, plan_hash, rng, seconds)

    def close(self) -> None:
        """Nothing is open."""

    def _passed(
        self,
        item: WorkItem,
        knobs: Knobs,
        structure: Mapping[str, KnobValue],
        plan_hash: str,
        rng: np.random.Generator,
        seconds: float,
    ) -> Evaluation:
        tried = [item.chosen[CASE]] if CASE in item.chosen else self._configurations(item, knobs, rng)
        latencies = {configuration: self.landscape.latency_us(merge(structure, configuration)) for configuration in tried}
        best = min(tried, key=latencies.__getitem__)
        features = merge(structure, best)
        base = self._baseline_us(item, latencies[best])
        speedup = base / latencies[best]
        if item.baseline is not None:
            speedup *= math.exp(self._noise * rng.standard_normal())
        margin = math.exp(1.96 * self._noise)
        case = CaseResult(
            CASE,
            best,
            self.landscape.error_ratio(features),
            base / speedup,
            base,
            speedup,
            speedup / margin,
            speedup * margin,
            0,
            self.landscape.peak_bytes(features),
        )
        return Evaluation(
            item.variant.variant_id,
            Status.PASSED,
            Stage.VERIFY if item.effort is Effort.VERIFY else Stage.TIME,
            self.device,
            plan_hash,
            TrustLevel.INTERPRETED,
            LatencyKind.SIMULATED,
            fitness=case.speedup_low,
            cases=(case,),
            trials=tuple(Trial(CASE, key, Status.PASSED, value) for key, value in latencies.items()) if knobs.space else (),
            wall_s=seconds,
            gpu_s=seconds,
            noise_floor=1.96 * self._noise,
        )

    def _configurations(self, item: WorkItem, knobs: Knobs, rng: np.random.Generator) -> list[Configuration]:
        """The default, hints that fit the space, and random ones, without repeats."""
        if not knobs.space:
            return [knobs.default]
        found = {knobs.default: None}
        for hint in item.hints:
            fitting = {key: value for key, value in hint.items() if value in knobs.space.get(key, ())}
            found[Configuration({**knobs.default, **fitting})] = None
        for _ in range(self._trials):
            drawn = {key: choices[int(rng.integers(len(choices)))] for key, choices in knobs.space.items()}
            found[Configuration({**knobs.default, **drawn})] = None
        return list(found)[: self._trials]

    def _baseline_us(self, item: WorkItem, own: float) -> float:
        if item.baseline is None:
            return own
        source = item.baseline.variant.source
        configuration = item.baseline.configurations.get(CASE, read_knobs(source).default)
        return self.landscape.latency_us(merge(read_structure(source), configuration))

    def _failed(
        self, variant_id: str, status: Status, stage: Stage, plan_hash: str, message: str, signature: str, seconds: float
    ) -> Evaluation:
        return Evaluation(
            variant_id,
            status,
            stage,
            self.device,
            plan_hash,
            message=message,
            signature=signature,
            wall_s=seconds,
            gpu_s=seconds,
        )


def read_structure(source: str) -> dict[str, KnobValue]:
    """Counts of kernels and loops, and module-level flags (an upper-case name given a literal), without running the source.

    Raises:
        ValueError: The source does not parse.
    """
    try:
        tree = module_tree(source)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"the module does not parse: {error}") from error
    found: dict[str, KnobValue] = {name: len(pattern.findall(source)) for name, pattern in _STRUCTURE.items()}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            for target in node.targets:
                if (
                    isinstance(target, ast.Name)
                    and target.id.isupper()
                    and isinstance(node.value.value, int | float | bool | str)
                ):
                    found[target.id] = node.value.value
    return found


def merge(structure: Mapping[str, KnobValue], configuration: Mapping[str, KnobValue]) -> Features:
    """Features of a module in one configuration."""
    return tuple(sorted({**structure, **configuration}.items()))
