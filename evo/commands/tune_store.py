"""Trials of a tuning between stores: writes those of a kernel that was tuned alone, reads those of another device as hints."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from evo.commands.search import make_header
from evo.config import RunConfig
from evo.errors import InputError
from evo.evaluation.settings import EvaluationSettings
from evo.knobs import Knobs
from evo.records import Configuration, Evaluation, Proposal, Request, Spent, Variant
from evo.tasks.base import Task
from population_store.base import EvaluationEntry, OutcomeEntry, PopulationStore, Purpose
from population_store.opening import open_store

HINTS = 6
"""Configurations of another device to start from, at most."""


def transferred_hints(url: str, task: str, knobs: Knobs) -> tuple[Configuration, ...]:
    """The best configurations that a store has for a task, of variants that share knobs with this one, those that share most first.

    What was fast on one device is worth trying on another, whose best is often near; latencies themselves do not carry over.

    Args:
        url: Of the store.
        task: Task name.
        knobs: Of the variant to tune.

    Raises:
        InputError: The store cannot be used, or holds no trial with such knobs.
    """
    with open_store(url) as store:
        best: dict[Configuration, tuple[int, float]] = {}
        for evaluation in _evaluations(store, task):
            fastest: dict[str, float] = {}
            for trial in evaluation.trials:
                if trial.latency_us is not None:
                    fastest[trial.case] = min(trial.latency_us, fastest.get(trial.case, trial.latency_us))
            for trial in evaluation.trials:
                shared = len(set(trial.configuration) & set(knobs.space))
                if trial.latency_us is not None and shared:
                    rank = (-shared, trial.latency_us / fastest[trial.case])
                    best[trial.configuration] = min(rank, best.get(trial.configuration, rank))
    if not best:
        action = (
            f"no trial of task {task} with any of the knobs {', '.join(knobs.space)}: leave --transfer out, or give another store"
        )
        raise InputError(f"--transfer {url}", action=action)
    return tuple(heapq.nsmallest(HINTS, best, key=lambda item: best[item]))


def record_tuning(url: str, task: Task, variant: Variant, verdict: Evaluation, settings: EvaluationSettings) -> None:
    """Creates a store with one request, the tuned module and its verdict, all trials included.

    Raises:
        StoreError: It exists already or cannot be written.
    """
    reference = str(task.path) if task.path else task.name
    config = RunConfig(name="tune", tasks=(reference,), seed=settings.seed, evaluation=settings, store=url)
    request = Request(0, task.name, 0, f"{task.name}/0/0", "start", ())
    entries = (
        request,
        OutcomeEntry(0, Proposal(variant.source, "tuned alone"), variant),
        EvaluationEntry(0, Purpose.SEARCH, verdict),
    )
    with open_store(url, header=make_header(config, {task.name: task})) as store:
        store.record(entries, Spent(evaluations=1, proposals=1, wall_s=verdict.wall_s, gpu_s=verdict.gpu_s))


def _evaluations(store: PopulationStore, task: str) -> Iterator[Evaluation]:
    """Of the search, of one task, in order."""
    numbers: set[int] = set()
    for _, entry in store.journal():
        if isinstance(entry, Request) and entry.task == task:
            numbers.add(entry.number)
        elif isinstance(entry, EvaluationEntry) and entry.number in numbers and entry.purpose is Purpose.SEARCH:
            yield entry.evaluation
