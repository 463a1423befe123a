"""Evaluators that fail on one machine of a test cluster, as real ones do."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from evo.errors import BadDeviceError
from evo.evaluation.base import Claim, Evaluator, WorkItem
from evo.evaluation.settings import EvaluationSettings
from evo.evaluation.simulated import SimulatedEvaluator
from evo.knobs import read_knobs
from evo.records import Evaluation
from evo.tasks.base import Task
from evo.tracing.workbench import Job, Workbench
from tests.evo_tests.machines import MARK, OWNED, busy_sign

MEDIAN_S = 0.8
VICTIM = "b"
"""The machine that fails."""

Tasks = Mapping[str, Task]


class _Seen(SimulatedEvaluator):
    """Shows when it is at work."""

    def evaluate(self, item: WorkItem, claim: Claim) -> Evaluation:
        """As long as it takes."""
        sign = busy_sign(os.environ[OWNED])
        sign.touch()
        try:
            return super().evaluate(item, claim)
        finally:
            sign.unlink(missing_ok=True)


def brisk(tasks: Tasks, settings: EvaluationSettings, device: str) -> Evaluator:
    """Takes a moment, so that it can be hit in the middle."""
    return _Seen(settings.seed, duration_s=MEDIAN_S, duration_sigma=0.2)


def slow_there(tasks: Tasks, settings: EvaluationSettings, device: str) -> Evaluator:
    """Takes ten minutes for each variant on the victim."""
    return _Seen(settings.seed, duration_s=600.0 if _there() else MEDIAN_S, duration_sigma=0.0)


class _Failing(SimulatedEvaluator):
    """Works a while, and then finds what the health check of a GPU finds."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, duration_s=MEDIAN_S, duration_sigma=0.2)
        self._left = 3

    def evaluate(self, item: WorkItem, claim: Claim) -> Evaluation:
        """Three verdicts."""
        self._left -= 1
        if self._left < 0:
            raise BadDeviceError("GPU 1 (NVIDIA H200, GPU-5a1d) fails its health check twice: 7 words of memory differ")
        return super().evaluate(item, claim)


def bad_device_there(tasks: Tasks, settings: EvaluationSettings, device: str) -> Evaluator:
    """The victim's device turns bad after three verdicts."""
    return _Failing(settings.seed) if _there() else brisk(tasks, settings, device)


class _OtherModel(SimulatedEvaluator):
    @property
    def device(self) -> str:
        """Another one than that of the other machines."""
        return "simulated, another model"


def other_model_there(tasks: Tasks, settings: EvaluationSettings, device: str) -> Evaluator:
    """The victim has another device model."""
    return _OtherModel(settings.seed) if _there() else brisk(tasks, settings, device)


class _Hungry(SimulatedEvaluator):
    """One variant takes all memory there is."""

    def evaluate(self, item: WorkItem, claim: Claim) -> Evaluation:
        """The first child is the one."""
        taken: list[bytearray] = []
        while item.number == POISON:
            taken.append(bytearray(os.urandom(1 << 20) * 16))
            time.sleep(0.001)
        return super().evaluate(item, claim)


POISON = 1
"""Request whose variant eats memory; 0 is the starting kernel's."""


def hungry(tasks: Tasks, settings: EvaluationSettings, device: str) -> Evaluator:
    """Eats memory over one variant."""
    return _Hungry(settings.seed, duration_s=MEDIAN_S, duration_sigma=0.2)


class _Writing(_Seen):
    """Writes files that it needs, as those that interpret or compile do."""

    def evaluate(self, item: WorkItem, claim: Claim) -> Evaluation:
        """Fails where there is no space."""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "scratch").write_bytes(bytes(1 << 16))
        return super().evaluate(item, claim)


def writing(tasks: Tasks, settings: EvaluationSettings, device: str) -> Evaluator:
    """Needs space for temporary files."""
    return _Writing(settings.seed, duration_s=MEDIAN_S, duration_sigma=0.2)


class _Tracing(_Seen):
    """Traces each variant, as real evaluators do, in a sandbox whose processes can be killed; its verdict does not depend on it."""

    def __init__(self, seed: int, tasks: Tasks, target: str) -> None:
        super().__init__(seed, duration_s=MEDIAN_S, duration_sigma=0.2)
        self._tasks = tasks
        self._bench = Workbench(target, workers=1)
        self._bench.start()

    def evaluate(self, item: WorkItem, claim: Claim) -> Evaluation:
        """After its trace."""
        source, task = item.variant.source, self._tasks[item.variant.task]
        self._bench.prepare([Job(source, task, task.small_cases[0], read_knobs(source).default, binaries=False)])
        return super().evaluate(item, claim)

    def close(self) -> None:
        """Ends the tracer."""
        self._bench.close()


def tracing(tasks: Tasks, settings: EvaluationSettings, device: str) -> Evaluator:
    """Has a tracer."""
    return _Tracing(settings.seed, tasks, settings.target)


def _there() -> bool:
    return os.environ.get(MARK) == VICTIM
