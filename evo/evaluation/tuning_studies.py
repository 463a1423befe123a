"""Rebuilds the study of a tuning from the trials that a store keeps: for Optuna's own analyses, and to go on with it."""

from __future__ import annotations

from collections.abc import Sequence

from evo.evaluation.tuning import Answer, Tuner
from evo.knobs import Knobs
from evo.records import Configuration, Status, Trial

PRUNED = "pruned: its latency is rough, as it is far from the best"
"""Message of a trial that was given up after a first look."""


def rebuilt(knobs: Knobs, trials: Sequence[Trial], cases: Sequence[str], *, seed: int = 0) -> Tuner:
    """A tuner that was told what is stored: its `study` holds every trial, and it goes on from there once it is extended.

    Args:
        knobs: Of the variant whose trials these are.
        trials: Of one evaluation, in order; those of other cases are left out.
        cases: The group that was tuned together.
        seed: Of what is asked next.

    Raises:
        ValueError: A trial is not within the knobs' space: it is of another variant.
    """
    tuner = Tuner(knobs.space, knobs.default, [], 0, seed, cases)
    tuner.recall(answers_of([trial for trial in trials if trial.case in cases]))
    return tuner


def answers_of(trials: Sequence[Trial]) -> tuple[Answer, ...]:
    """One answer per configuration, in the order in which they were tried. What ran and failed the gate later is infeasible."""
    found: dict[Configuration, list[Trial]] = {}
    for trial in trials:
        found.setdefault(trial.configuration, []).append(trial)
    return tuple(answer_of(configuration, tried) for configuration, tried in found.items())


def answer_of(configuration: Configuration, trials: Sequence[Trial]) -> Answer:
    """The answer that some trials of one configuration make; of several on one case the last counts."""
    by_case = {trial.case: trial for trial in trials}
    latencies = {case: trial.latency_us for case, trial in by_case.items() if trial.latency_us is not None}
    pruned = bool(latencies) and all(by_case[case].message == PRUNED for case in latencies)
    unfit = tuple(case for case, trial in by_case.items() if trial.status is not Status.PASSED)
    return Answer(configuration, latencies, pruned, unfit)
