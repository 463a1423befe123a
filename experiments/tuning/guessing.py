"""The guess that a tuner starts from, for a measured grid: made anew from traces of its kernel, which need no GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from evo.evaluation.tuning_prior import Prior, guessed, probes
from evo.evaluation.tuning_space import Floats, KnobSpace
from evo.evaluation.tuning_surrogate import Guess
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


def worth(grid: Grid, guess: Guess, first: int) -> dict[str, float | None]:
    """How much of a grid a guess knows: its rank correlation with the truth, the best quality among its favourites, what it foresees."""
    space = KnobSpace(grid.space, grid.default)
    rows = [space.codes(entry.configuration) for entry in grid.valid]
    latencies = np.asarray([entry.latency_us or math.inf for entry in grid.valid])
    losses = guess.terms(rows).sum(axis=1)
    bad = [space.codes(entry.configuration) for entry in grid.entries if entry.latency_us is None]
    favourites = np.argsort(losses, kind="stable")[:first]
    return {
        "spearman": float(np.corrcoef(_ranks(losses), _ranks(latencies))[0, 1]) if np.ptp(losses) and np.ptp(latencies) else 0.0,
        "first_quality": float(grid.best_us / latencies[favourites].min()),
        "foreseen": float((guess.fits(bad) < 1).mean()) if bad else None,
        "mistaken": float((guess.fits(rows) < 1).mean()),
    }


def _ranks(values: Floats) -> Floats:
    """Ties share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    means: Floats = np.cumsum(counts) - (counts - 1) / 2
    return means[place]


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
