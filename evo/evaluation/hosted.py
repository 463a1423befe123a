"""The hosted fallback: judges and times variants whose wrappers look at values, which no trace can follow, each in a process of its own.

Trusted less than a replay: candidate Python runs where its kernels run. What it cannot reach is told in `evo.evaluation.hosted_host`; what
remains is that rules on torch operators are kept by the candidate's own process, and that latencies are of calls (wrapper included)
and not of the device. Both sides of a comparison are hosted, even if the baseline could be replayed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evo.errors import DeviceError, WorkerDied, WorkerOutOfMemory
from evo.evaluation.base import Baseline, Claim, Effort, Evaluator, WorkItem
from evo.evaluation.draws import choose_draws
from evo.evaluation.failed import Failed
from evo.evaluation.hosted_sides import HostedWork
from evo.evaluation.settings import EvaluationSettings
from evo.evaluation.statistics import case_interval, geometric_mean_interval
from evo.evaluation.tier import Checked, Timing
from evo.evaluation.tuning import Tuner
from evo.evaluation.worker import Nursery, Worker
from evo.knobs import Knobs, narrowed, read_knobs
from evo.records import (
    CaseResult,
    Configuration,
    Evaluation,
    Failure,
    LatencyKind,
    Stage,
    Status,
    Trial,
    TrustLevel,
    content_id,
)
from evo.tasks.base import Case, Task
from evo.tasks.draws import Draw
from evo.tracing.tracer import lint

MAX_TRIALS = 8
"""Configurations per case: each costs a process and its compilation, with the device held."""
QUICK_CALLS = 5
NOISE_PAIRS = 16
HOST_DEADLINE_S = 3600.0
"""The host keeps the candidates' deadlines; this one is for a host that is broken itself."""
CLOSE_S = 60.0
FACTORIES = {"cuda": "evo.evaluation.hosted_host:CudaHost", "cpu": "evo.evaluation.hosted_host:CpuHost"}


class Host:
    """A hosting process that is started when it is first needed. Not thread-safe.

    Args:
        device: ``cuda`` or ``cpu``; see `evo.evaluation.hosted_host`.
        deadline_s: Of one request to a candidate.
        factory: What the process serves, as `evo.evaluation.worker.Nursery.fork` takes it; empty for the device's own.
    """

    def __init__(self, device: str, deadline_s: float, factory: str = "") -> None:
        self._factory = factory or FACTORIES[device]
        self._deadline_s = deadline_s
        self._nursery: Nursery | None = None
        self._worker: Worker | None = None
        self._described: Mapping[str, Any] = {}
        self.busy_s = 0.0

    @property
    def name(self) -> str:
        """The device's."""
        with self._watched():
            self._started()
        return str(self._described["name"])

    def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the hosting process.

        Raises:
            DeviceError: It died; no candidate can bring that about, so the device or this program is at fault. Where memory did not
                suffice, that is so in a new process, too, which holds nothing of others.
        """
        with self._watched():
            try:
                return self._started().call(method, *arguments, self._deadline_s, deadline_s=HOST_DEADLINE_S)
            except WorkerOutOfMemory:
                self._described = {}
            return self._started().call(method, *arguments, self._deadline_s, deadline_s=HOST_DEADLINE_S)

    def fresh(self) -> None:
        """Ends the process and its candidates'; the next call gets a new one."""
        if self._worker is not None and self._described:
            with contextlib.suppress(WorkerDied):  # it tidies up what it can; what is left then dies with it
                self._worker.call("close", deadline_s=CLOSE_S)
        if self._worker is not None:
            self._worker.stop()
        self._described = {}

    def close(self) -> None:
        """Ends all processes. Idempotent."""
        self.fresh()
        if self._nursery is not None:
            self._nursery.close()
        self._nursery = self._worker = None

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        except WorkerDied as error:
            self._described = {}
            raise DeviceError(f"the host of untraceable kernels ended: {error.reason}") from error
        finally:
            self.busy_s += time.monotonic() - started

    def _started(self) -> Worker:
        if self._worker is None:
            self._nursery = Nursery()
            self._worker = Worker(self._nursery, "host", self._factory)
        if not self._described:  # whether CUDA IPC works is found out before anything is lent
            self._described = self._worker.call("describe", self._deadline_s, deadline_s=HOST_DEADLINE_S)
        return self._worker


class HostedEvaluator(Evaluator):
    """Evaluates variants in hosted processes; `evo.evaluation.ladder` gives it those that cannot be traced.

    Args:
        tasks: By name.
        settings: Effort and deadlines.
        device: ``cuda``; or ``cpu``, where candidates run under Triton's interpreter and times are of that, which serves tests alone.
    """

    def __init__(self, tasks: Mapping[str, Task], settings: EvaluationSettings, device: str = "cuda") -> None:
        self._tasks = tasks
        self._settings = settings
        self._kind = LatencyKind.MEASURED if device == "cuda" else LatencyKind.SIMULATED
        self._host = Host(device, settings.run_deadline_s)
        self._noise: dict[str, float] = {}
        self._secret = secrets.token_bytes(16)
        self.compiled = device == "cuda"

    @property
    def device(self) -> str:
        """The GPU's name."""
        return self._host.name

    def evaluate(self, item: WorkItem, claim: Claim) -> Evaluation:
        """See `Evaluator`."""
        started, busy = time.monotonic(), self._host.busy_s
        climb = _HostedClimb(self._tasks[item.variant.task], item, self._settings, self)
        try:
            evaluation = climb.search(claim) if item.effort is Effort.SEARCH else climb.verify()
        except Failed as error:
            evaluation = climb.verdict(error.failure)
        wall, gpu = time.monotonic() - started, self._host.busy_s - busy if self.compiled else 0.0
        return dataclasses.replace(evaluation, wall_s=wall, gpu_s=gpu, noise_floor=climb.noise_floor)

    def check(self, work: HostedWork, case: Case, draws: Sequence[Draw]) -> Checked | Failure:
        """The gate on one case; seeds are public and mixed with a secret here."""
        mixed = [Draw(self._mixed(f"{work.task}:{case.name}:{draw.seed}"), draw.variation) for draw in draws]
        answer: Checked | Failure = self._host.call("check", work, case.name, mixed)
        return answer

    def latency_us(self, work: HostedWork, case: Case) -> float | Failure:
        """A quick latency, for tuning and for starting kernels."""
        answer: float | Failure = self._host.call("latency_us", work, case.name, QUICK_CALLS)
        return answer

    def compare(self, work: HostedWork, baseline: HostedWork, case: Case, pairs: int, incumbent: float) -> Timing | Failure:
        """Timed pairs; the first time for a task, the baseline is timed against itself too."""
        if work.task not in self._noise:
            equal: Timing | Failure = self._host.call("compare", baseline, baseline, case.name, NOISE_PAIRS, 0.0)
            if isinstance(equal, Failure):
                raise DeviceError(f"the baseline of {work.task} fails: {equal.message}")
            self._noise[work.task] = case_interval(equal.log_ratios, seed=0).half_width
        answer: Timing | Failure = self._host.call("compare", work, baseline, case.name, pairs, incumbent)
        return answer

    def noise_of(self, task: str) -> float:
        """Relative half-width of the A/A interval of a task."""
        return self._noise.get(task, 0.0)

    def fresh(self) -> None:
        """New processes and new secrets."""
        self._host.fresh()
        self._secret = secrets.token_bytes(16)

    @property
    def latency_kind(self) -> LatencyKind:
        """MEASURED on a GPU."""
        return self._kind

    def close(self) -> None:
        """Ends all processes."""
        self._host.close()

    def _mixed(self, text: str) -> int:
        return int.from_bytes(hashlib.sha256(self._secret + text.encode()).digest()[:6], "little")


class _HostedClimb:
    """One variant on its way up: lint, gate, a few configurations, pairs."""

    def __init__(self, task: Task, item: WorkItem, settings: EvaluationSettings, evaluator: HostedEvaluator) -> None:
        self._task, self._item, self._settings, self._evaluator = task, item, settings, evaluator
        self._reference = str(task.path) if task.path else task.name
        self._source = item.variant.source
        self._plan_hash = ""
        self._trials: list[Trial] = []
        self._checked: dict[tuple[str, Configuration], Checked] = {}

    def search(self, claim: Claim) -> Evaluation:
        """All rungs. There is no plan: what is claimed is the source with what tuning may choose from."""
        knobs = self._lint()
        owner = claim(self._plan_hash, self._item.variant.variant_id)
        if owner is not None and owner != self._item.variant.variant_id:
            text = f"has the text and the knobs of {owner}"
            return Evaluation(
                self._item.variant.variant_id, Status.DUPLICATE, Stage.TRACE, self._evaluator.device, plan_hash=self._plan_hash,
                message=text, duplicate_of=owner,
            )  # fmt: skip
        for case in (*self._task.small_cases, *self._task.training_cases):
            self._gate(case, knobs.default)
        chosen = {case: self._tune(case, knobs) for case in self._task.training_cases}
        return self._time(chosen, self._item.incumbent)

    def verify(self) -> Evaluation:
        """A fresh host, held-out cases, given configurations."""
        knobs = self._lint()
        self._evaluator.fresh()
        for case in self._task.cases:
            self._gate(case, self._chosen(case, knobs))
        return self._time({case: self._chosen(case, knobs) for case in self._task.training_cases}, 0.0)

    @property
    def noise_floor(self) -> float:
        """Of the task."""
        return self._evaluator.noise_of(self._reference)

    def verdict(self, failure: Failure) -> Evaluation:
        """The verdict for a failing rung."""
        return Evaluation(
            self._item.variant.variant_id, failure.status, failure.stage, self._evaluator.device, plan_hash=self._plan_hash,
            message=failure.message, signature=failure.signature, trials=tuple(self._trials),
        )  # fmt: skip

    def _lint(self) -> Knobs:
        problem = lint(self._source, self._task.entry)
        if problem is not None:
            raise Failed(problem)
        knobs = narrowed(read_knobs(self._source), self._task.knobs)
        space = json.dumps({key: list(choices) for key, choices in sorted(knobs.space.items())})
        self._plan_hash = content_id("hosted", self._source, space)
        return knobs

    def _gate(self, case: Case, configuration: Configuration) -> None:
        draws = choose_draws(self._task, case, self._item.effort, self._evaluator.compiled)
        checked = self._evaluator.check(self._work(configuration), case, draws)
        if isinstance(checked, Failure):
            raise Failed(checked)
        self._checked[case.name, configuration] = checked

    def _tune(self, case: Case, knobs: Knobs) -> Configuration:
        """The fastest configuration that passes the gate itself."""
        settings = self._settings
        trials = min(MAX_TRIALS, settings.start_tune_trials if self._item.baseline is None else settings.tune_trials)
        hints = [hint for hint in self._item.hints if set(hint) == set(knobs.default)]
        tuner = Tuner(knobs.space, knobs.default, hints, trials, settings.seed * 1_000_003 + self._item.number)
        tried: list[tuple[float, Configuration]] = []
        while (configuration := tuner.ask()) is not None:
            latency = self._evaluator.latency_us(self._work(configuration), case)
            passed = not isinstance(latency, Failure)
            tuner.tell(configuration, latency if passed else None, passed)  # type: ignore[arg-type]
            if isinstance(latency, Failure):
                self._trials.append(Trial(case.name, configuration, latency.status, None, latency.message[:500]))
            else:
                self._trials.append(Trial(case.name, configuration, Status.PASSED, latency))
                tried.append((latency, configuration))
        for _, configuration in sorted(tried, key=lambda pair: pair[0]):
            try:
                if (case.name, configuration) not in self._checked:
                    self._gate(case, configuration)
                return configuration
            except Failed as error:
                self._trials.append(Trial(case.name, configuration, error.failure.status, None, error.failure.message[:500]))
        return knobs.default

    def _time(self, chosen: Mapping[Case, Configuration], incumbent: float) -> Evaluation:
        reach = incumbent if len(chosen) == 1 else 0.0
        results = [self._timed(case, configuration, reach) for case, configuration in chosen.items()]
        ratios = [result.log_ratios for result in results]
        fitness = 1.0
        if all(ratios):
            interval = geometric_mean_interval(ratios, seed=self._item.number)
            fitness = min(interval.low, interval.point * math.exp(-self.noise_floor))
        stage = Stage.TIME if self._item.effort is Effort.SEARCH else Stage.VERIFY
        return Evaluation(
            self._item.variant.variant_id, Status.PASSED, stage, self._evaluator.device, plan_hash=self._plan_hash,
            trust=TrustLevel.HOSTED, latency_kind=self._evaluator.latency_kind, fitness=fitness, cases=tuple(results),
            trials=tuple(self._trials),
        )  # fmt: skip

    def _timed(self, case: Case, configuration: Configuration, incumbent: float) -> CaseResult:
        checked = self._checked[case.name, configuration]
        baseline = self._item.baseline
        if baseline is None or (baseline.variant == self._item.variant and self._item.effort is Effort.SEARCH):
            latency = self._evaluator.latency_us(self._work(configuration), case)
            if isinstance(latency, Failure):
                raise Failed(latency)
            alone = (latency, latency, 1.0, 1.0, 1.0, 0)
            return CaseResult(case.name, configuration, checked.error_ratio, *alone, checked.peak_bytes)
        theirs = self._baseline_work(baseline, case)
        timing = self._evaluator.compare(self._work(configuration), theirs, case, self._settings.race[-1], incumbent)
        if isinstance(timing, Failure):
            raise Failed(timing)
        interval = case_interval(timing.log_ratios, seed=self._item.number)
        paired = (timing.latency_us, timing.baseline_us, interval.point, interval.low, interval.high, len(timing.log_ratios))
        return CaseResult(case.name, configuration, checked.error_ratio, *paired, checked.peak_bytes, timing.log_ratios)

    def _work(self, configuration: Configuration) -> HostedWork:
        return HostedWork(self._reference, self._source, dict(configuration))

    def _baseline_work(self, baseline: Baseline, case: Case) -> HostedWork:
        return HostedWork(self._reference, baseline.variant.source, dict(baseline.configurations[case.name]))

    def _chosen(self, case: Case, knobs: Knobs) -> Configuration:
        return self._item.chosen.get(self._task.nearest_training_case(case).name, knobs.default)
