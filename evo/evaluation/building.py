"""Builds the evaluator for a device: the ladder over the replayed tier on a GPU, with the hosted fallback for what cannot be
traced, over the interpreted tier without one."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from contextlib import ExitStack

from evo.errors import DeviceError
from evo.evaluation.base import Evaluator
from evo.evaluation.hosted import HostedEvaluator
from evo.evaluation.interpreter import InterpretedTier
from evo.evaluation.ladder import LadderEvaluator
from evo.evaluation.observed import RecordedUse
from evo.evaluation.sanitize import Sanitizers
from evo.evaluation.settings import EvaluationSettings
from evo.tasks.base import Task
from evo.tracing.workbench import Workbench


def build_evaluator(tasks: Mapping[str, Task], settings: EvaluationSettings, device: str, *, hosting: bool = True) -> Evaluator:
    """Builds an evaluator and starts its processes; where it does not come to an end, all of them are ended.

    Args:
        tasks: By name.
        settings: See `EvaluationSettings`.
        device: ``gpu``, or ``cpu:TARGET`` for modelled estimates of that target, e.g. ``cpu:cuda:90``.
        hosting: Whether what cannot be traced is hosted on a GPU; else it is UNTRACEABLE.

    Raises:
        DeviceError: ``gpu`` without a usable one, or a GPU of another kind than the target.
    """
    if device != "gpu":
        settings = dataclasses.replace(settings, target=device.removeprefix("cpu:"))
        # One evaluator leaves a core of a small machine idle while it compiles; a large one has an evaluator per core.
        with ExitStack() as started:
            bench = _bench(settings, started, workers=2 if (os.cpu_count() or 1) <= 4 else 1, sass=True)
            interpreted = InterpretedTier(settings.target, deadline_s=settings.run_deadline_s, workbench=bench)
            started.callback(interpreted.close)
            interpreted.start()
            evaluator = LadderEvaluator(tasks, settings, interpreted, bench)
            started.pop_all()
        return evaluator
    from evo.evaluation.replay import ReplayTier  # imports torch's CUDA side

    with ExitStack() as started:
        known = settings.target != "auto"
        if known:  # the workbench's processes import what they need while the tier's do
            bench = _bench(settings, started, workers=compile_workers(settings), sass=False)
        tier = ReplayTier(settings)
        started.callback(tier.close)
        if settings.target not in ("auto", tier.capability):
            raise DeviceError(f"the target is {settings.target}, the GPU is {tier.device} ({tier.capability})")
        settings = dataclasses.replace(settings, target=tier.capability)
        if not known:
            bench = _bench(settings, started, workers=compile_workers(settings), sass=False)
        # Both start their processes when they are first needed.
        hosted = HostedEvaluator(tasks, settings) if hosting else None
        examinations = (RecordedUse(deadline_s=settings.run_deadline_s), Sanitizers(deadline_s=settings.run_deadline_s))
        evaluator = LadderEvaluator(tasks, settings, tier, bench, hosted=hosted, examinations=examinations)
        started.pop_all()
    return evaluator


def compile_workers(settings: EvaluationSettings) -> int:
    """How many compilers serve one GPU: two cores are left to the processes that replay and judge."""
    return max(1, min(14, (settings.cores or os.cpu_count() or 2) - 2))


def _bench(settings: EvaluationSettings, started: ExitStack, *, workers: int, sass: bool) -> Workbench:
    bench = Workbench(
        settings.target,
        workers=workers,
        trace_deadline_s=settings.trace_deadline_s,
        compile_deadline_s=settings.compile_deadline_s,
        sass=sass,
    )
    started.callback(bench.close)
    bench.start()
    return bench
