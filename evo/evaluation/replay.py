"""The replayed tier: plans run from binaries in a trusted GPU process and are judged in another; no candidate Python comes near either."""

from __future__ import annotations

import hashlib
import math
import secrets
import statistics
import time
from collections.abc import Sequence
from typing import Any

from evo.errors import DeviceError, WorkerDied
from evo.evaluation.replay_child import Ran, Work
from evo.evaluation.settings import EvaluationSettings
from evo.evaluation.statistics import case_interval
from evo.evaluation.tier import Candidate, Checked, Tier, Timing
from evo.evaluation.worker import Nursery, Worker
from evo.records import Failure, LatencyKind, Stage, Status, TrustLevel
from evo.tasks.base import Case, Task
from evo.tasks.draws import Draw

QUICK_REPLAYS = 7
REPEATS = 3


class ReplayTier(Tier):
    """One GPU. Input seeds are drawn when it is made and never leave the trusted processes.

    Raises:
        DeviceError: There is no usable GPU.
    """

    def __init__(self, settings: EvaluationSettings) -> None:
        self._deadline_s = settings.run_deadline_s
        self._nursery = Nursery()
        self._replay = Worker(self._nursery, "replay", "evo.evaluation.replay_child:ReplayProcess")
        self._judge = Worker(self._nursery, "judge", "evo.evaluation.judge_child:JudgeProcess")
        self._secret = secrets.token_bytes(16)
        self._gpu_s = 0.0
        self._noise: dict[str, float] = {}
        try:
            described = self._replay.call("describe", deadline_s=300)
            self._ipc = bool(self._judge.call("open_probe", self._replay.call("probe", deadline_s=60), deadline_s=300))
        except WorkerDied as error:
            self.close()
            raise DeviceError(f"no usable GPU: {error}") from error
        self._name = str(described["name"])
        self.capability = "cuda:{}{}".format(*described["capability"])

    @property
    def device(self) -> str:
        """The GPU's name."""
        return self._name

    @property
    def trust(self) -> TrustLevel:
        """See `Tier`."""
        return TrustLevel.REPLAYED

    @property
    def latency_kind(self) -> LatencyKind:
        """See `Tier`."""
        return LatencyKind.MEASURED

    @property
    def gates_on_binaries(self) -> bool:
        """See `Tier`."""
        return True

    @property
    def gpu_s(self) -> float:
        """Seconds in which the GPU was this tier's."""
        return self._gpu_s

    def gate_cases(self, task: Task) -> tuple[Case, ...]:
        """Small cases, then training cases."""
        return task.small_cases + task.training_cases

    def check(self, task: Task, candidate: Candidate, draws: Sequence[Draw]) -> Checked | Failure:
        """See `Tier`; three runs must agree bit for bit, guard bands and inputs must be untouched."""
        worst = Checked(0.0, 0)
        for draw in draws:
            checked = self._check(task, candidate, Draw(self._seed(task, candidate.case, draw.seed), draw.variation))
            if isinstance(checked, Failure):
                return checked
            worst = Checked(max(worst.error_ratio, checked.error_ratio), max(worst.peak_bytes, checked.peak_bytes))
        return worst

    def _check(self, task: Task, candidate: Candidate, draw: Draw) -> Checked | Failure:
        work = self._work(task, candidate)
        try:
            ran: Ran = self._timed("check", work, draw, self._ipc, REPEATS)
        except WorkerDied as error:
            return self._died(candidate.case, error)
        problem = _memory_problem(candidate.case, ran)
        if problem is not None:
            return problem
        try:
            verdict = self._judge.call(
                "judge", work.task, work.case, draw, ran.structure, ran.outputs, Stage.GATE.value, deadline_s=self._deadline_s
            )
            self._timed("release")
        except WorkerDied as error:
            if error.role == "judge":
                raise DeviceError(f"the judge could not answer on case {candidate.case.name}: {error}") from error
            return self._died(candidate.case, error)
        return verdict if isinstance(verdict, Failure) else Checked(verdict.error_ratio, ran.peak_bytes)

    def latency_us(self, task: Task, candidate: Candidate) -> float | Failure:
        """Median of a few graph replays."""
        try:
            return float(self._timed("latency", self._work(task, candidate), self._seed(task, candidate.case, 0), QUICK_REPLAYS))
        except WorkerDied as error:
            return self._died(candidate.case, error, Stage.TIME)

    def compare(self, task: Task, candidate: Candidate, baseline: Candidate, *, pairs: int, incumbent: float) -> Timing | Failure:
        """See `Tier`: A/B pairs in random order, each a graph replay after the L2 cache was overwritten."""
        ours, theirs = self._work(task, candidate), self._work(task, baseline)
        seed = self._seed(task, candidate.case, 0)
        order = int.from_bytes(hashlib.sha256(candidate.plan.plan_hash.encode() + self._secret).digest()[:4], "little")
        try:
            if task.name not in self._noise:
                mine, other, _ = self._timed("compare", theirs, theirs, seed, max(16, pairs), order, 0.0)
                self._noise[task.name] = case_interval(_log_ratios(mine, other), seed=order).half_width
            mine, other, as_checked = self._timed("compare", ours, theirs, seed, pairs, order, incumbent)
        except WorkerDied as error:
            return self._died(candidate.case, error, Stage.TIME)
        if not as_checked:
            text = f"case {candidate.case.name}: a timed call gave other outputs than a checked one on the same inputs"
            return Failure(Status.WRONG_VALUES, Stage.TIME, text, "wrong_values:timed call")
        return Timing(statistics.median(mine), statistics.median(other), tuple(_log_ratios(mine, other)))

    def noise_floor(self) -> float:
        """Largest half-width of the A/A intervals measured so far."""
        return max(self._noise.values(), default=0.0)

    def fresh(self) -> None:
        """Ends both workers; new ones start with the next call, with new seeds."""
        self._replay.stop()
        self._judge.stop()
        self._secret = secrets.token_bytes(16)

    def healthy(self) -> bool:
        """Whether a small kernel gives its known answer."""
        try:
            return bool(self._replay.call("health", deadline_s=60))
        except WorkerDied:
            return False

    def close(self) -> None:
        """See `Tier`."""
        self._replay.stop()
        self._judge.stop()
        self._nursery.close()

    def _timed(self, method: str, *arguments: Any) -> Any:
        started = time.monotonic()
        try:
            return self._replay.call(method, *arguments, deadline_s=self._deadline_s)
        finally:
            self._gpu_s += time.monotonic() - started

    def _work(self, task: Task, candidate: Candidate) -> Work:
        return Work(str(task.path) if task.path else task.name, candidate.case.name, candidate.plan, candidate.binaries)

    def _seed(self, task: Task, case: Case, seed: int) -> int:
        text = f"{task.name}:{case.name}:{seed}".encode()
        return int.from_bytes(hashlib.sha256(self._secret + text).digest()[:6], "little")

    def _died(self, case: Case, error: WorkerDied, stage: Stage = Stage.GATE) -> Failure:
        if not self.healthy():
            raise DeviceError(f"the GPU fails its health check after {error}")
        if error.reason == "deadline":
            text = f"case {case.name}: the kernels did not end within {self._deadline_s:g} s"
            return Failure(Status.TIMEOUT, stage, text, "timeout:replay")
        return Failure(Status.RUNTIME_ERROR, stage, f"case {case.name}: {error.reason}", f"runtime_error:{error.reason[:80]}")


def _memory_problem(case: Case, ran: Ran) -> Failure | None:
    if ran.violations:
        text = f"case {case.name}: writes outside its buffers ({ran.violations} guard bands changed)"
        return Failure(Status.GUARD_VIOLATION, Stage.GATE, text, "guard_violation:bands")
    if ran.changed_inputs:
        key = ran.changed_inputs[0]
        what = f"argument {key}" if isinstance(key, int) else f"parameter {key}"
        text = f"case {case.name}: changes {what}, which the task does not update in place"
        return Failure(Status.GUARD_VIOLATION, Stage.GATE, text, "guard_violation:inputs")
    if not ran.repeats_equal:
        text = f"case {case.name}: equal calls give different bits: a race, or atomics whose order matters"
        return Failure(Status.NONDETERMINISTIC, Stage.GATE, text, "nondeterministic:bits")
    return None


def _log_ratios(candidate: list[float], baseline: list[float]) -> list[float]:
    return [math.log(b / a) for a, b in zip(candidate, baseline, strict=True)]
