"""The guess that a tuner starts from, for a measured grid: made anew from traces of its kernel, which need no GPU."""

from __future__ import annotations

from collections.abc import Sequence

from evo.evaluation.tuning_prior import Prior, guessed, probes
from evo.evaluation.tuning_space import KnobSpace
from evo.records import Configuration
from evo.tracing.plan import LaunchPlan
from evo.tracing.targets import TARGETS
from evo.tracing.tracer import Tracer
from experiments.tuning.catalogue import SUBJECTS, knobs_of
from experiments.tuning.grid import Grid


def target_of(device: str) -> str | None:
    """The target that a grid was measured on or modelled for, by the name of its device."""
    return next((key for key, target in TARGETS.items() if device == target.name or device.startswith(f"{key} ")), None)


def guesses(grids: Sequence[Grid]) -> dict[str, Prior]:
    """By name of the grid; grids of unknown kernels or devices, and of kernels that are no longer as they were measured, have none."""
    found: dict[str, Prior] = {}
    tracers: dict[str, Tracer] = {}
    try:
        for grid in grids:
            target = target_of(grid.device)
            if target is None:
                continue
            if target not in tracers:
                tracers[target] = Tracer(target)
            guess = guess_of(grid, tracers[target])
            if guess is not None:
                found[grid.name] = guess
    finally:
        for tracer in tracers.values():
            tracer.close()
    return found


def guess_of(grid: Grid, tracer: Tracer) -> Prior | None:
    """The guess of one grid."""
    subject = next((item for item in SUBJECTS if item.name == grid.name), None)
    if subject is None or set(knobs_of(subject).space) != set(grid.space):
        return None
    task, case = subject.load()
    space = KnobSpace(grid.space, grid.default)
    tried = probes(space)
    traced = tracer.trace_each(subject.source, task, [(case, item) for item in tried])
    plans: dict[Configuration, LaunchPlan] = {
        item: plan for item, plan in zip(tried, traced, strict=True) if isinstance(plan, LaunchPlan)
    }
    return guessed(space, plans)
