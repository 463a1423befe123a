"""The ladder every variant climbs, whatever the tier, and who may climb it at a time. The first failing rung ends a climb."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence

from evo.evaluation.base import Claim, Effort, Evaluator, Heard, WorkItem
from evo.evaluation.climb import Climb, searched_hash
from evo.evaluation.examination import Examination
from evo.evaluation.failed import Failed
from evo.evaluation.form import Forms
from evo.evaluation.settings import EvaluationSettings
from evo.evaluation.tier import Tier
from evo.evaluation.turns import Sharing, Turns
from evo.records import Evaluation, Status
from evo.tasks.base import Task
from evo.tracing.workbench import Workbench

MAX_CLIMBS = 18
"""Variants on the ladder at a time, at most. Each has one candidate in hand, so this also bounds what is kept ready for the device."""
READY_CLIMBS = 4
"""Climbs beyond the workbench's workers: what is prepared already, so that the device does not wait for who is being prepared."""


class LadderEvaluator(Evaluator):
    """Evaluates on one tier.

    Args:
        tasks: By name.
        settings: Effort and deadlines.
        tier: Runs candidates; closed with the evaluator.
        workbench: Traces and compiles; closed with the evaluator.
        hosted: Takes what cannot be traced, with the device to itself; closed with the evaluator. Without one, that is a verdict.
        examinations: What a variant passes besides the rungs when it is verified; closed with the evaluator.
    """

    def __init__(
        self,
        tasks: Mapping[str, Task],
        settings: EvaluationSettings,
        tier: Tier,
        workbench: Workbench,
        *,
        hosted: Evaluator | None = None,
        examinations: Sequence[Examination] = (),
    ) -> None:
        self._hosted = hosted
        self._examinations = tuple(examinations)
        self._tasks = tasks
        self._settings = settings
        self._tier = tier
        self._bench = workbench
        self._sharing = Sharing()
        self._clock = tier.clock
        self._forms = Forms()
        self._heard: Heard | None = None

    @property
    def device(self) -> str:
        """The tier's device."""
        return self._tier.device

    @property
    def concurrency(self) -> int:
        """Climbs side by side: while one has the device, others are traced and compiled, and some are ready."""
        ready = READY_CLIMBS if self._tier.overlaps else 0
        return min(MAX_CLIMBS, self._bench.workers + ready)

    def listen(self, heard: Heard) -> None:
        """See `Evaluator`."""
        self._heard = heard

    def evaluate(self, item: WorkItem, claim: Claim) -> Evaluation:
        """See `Evaluator`."""
        started = time.monotonic()
        tier = Turns(self._tier, self._sharing, self._clock)
        climb = Climb(
            self._tasks[item.variant.task], item, self._settings, tier, self._bench, self._clock, self._forms, self._heard
        )
        try:
            evaluation = climb.search(claim) if item.effort is Effort.SEARCH else climb.verify(self._examinations)
        except Failed as error:
            if error.failure.status is Status.UNTRACEABLE and self._hosted is not None:
                with tier.alone():
                    hosted = self._hosted.evaluate(item, claim)
                return dataclasses.replace(hosted, wall_s=time.monotonic() - started, gpu_s=hosted.gpu_s + tier.gpu_s)
            evaluation = climb.failed(error.failure)
        wall = time.monotonic() - started
        return dataclasses.replace(evaluation, wall_s=wall, gpu_s=tier.gpu_s, noise_floor=self._tier.noise_floor())

    def stage_seconds(self) -> Mapping[str, float]:
        """Where time went so far, from any thread: seconds per stage of `evo.evaluation.stages.STAGES`, summed over climbs, and
        ``device``, the seconds in which at least one climb had the device."""
        return {**self._clock.seconds, "device": self._clock.device_s}

    def counters(self) -> Mapping[str, int]:
        """What happened so far: replayed kernels loaded and unloaded, workers replaced, pairs discarded, and so on."""
        return {**self._clock.counts, **self._tier.counters()}

    def close(self) -> None:
        """Ends the processes of the tier, the workbench and all that was given."""
        self._tier.close()
        self._bench.close()
        for examination in self._examinations:
            examination.close()
        if self._hosted is not None:
            self._hosted.close()


__all__ = ["LadderEvaluator", "searched_hash"]
