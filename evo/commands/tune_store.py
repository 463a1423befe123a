"""Trials of a tuning between stores: keeps those of a kernel that is tuned alone as they come, reads those of another device as hints."""

from __future__ import annotations

import dataclasses
import heapq
import json
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from evo.commands.search import make_header
from evo.config import RunConfig
from evo.errors import InputError, StoreError, StoreInUseError, StoreVersionError
from evo.evaluation.settings import EvaluationSettings
from evo.knobs import Knobs
from evo.records import Configuration, Evaluation, Proposal, Request, Trial, Variant
from evo.tasks.base import Task
from population_store.base import EvaluationEntry, OutcomeEntry, PopulationStore, Purpose, TrialEntry
from population_store.opening import open_store

HINTS = 6
"""Configurations of another device to start from, at most."""
NAME = "tune"
"""Of the run in a store that `triton-evolve tune` makes."""


class TuningStore:
    """The store of one kernel's tuning. Every trial is in it before the next is asked for, so that a killed tuning goes on where it was.

    A context manager; owns the store meanwhile.

    Args:
        url: Of the store, which is made where there is none.
        task: Of the kernel.
        variant: The kernel, with its knobs.
        settings: Of the tuning.

    Raises:
        InputError: It is the store of a search, or of another kernel or task.
        StoreError: It cannot be opened or written.
    """

    def __init__(self, url: str, task: Task, variant: Variant, settings: EvaluationSettings) -> None:
        reference = str(task.path) if task.path else task.name
        config = RunConfig(name=NAME, tasks=(reference,), seed=settings.seed, evaluation=settings, store=url)
        header = make_header(config, {task.name: task})
        self._store = _opened(url) or open_store(url, header=header)
        try:
            _check(self._store, url, header.tasks, variant)
            self._trials: list[tuple[str, Trial]] = []
            """With the device of each."""
            self._number, self._position = -1, 0
            if self._read():
                self._begin(variant)
        except BaseException:
            self._store.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._store.close()

    def known(self, device: str) -> tuple[Trial, ...]:
        """Trials on a device, of tunings that ended and of one that did not."""
        return tuple(trial for where, trial in self._trials if where == device)

    def hear(self, device: str, trials: Sequence[Trial]) -> None:
        """Keeps the trials of one configuration."""
        self._store.record([TrialEntry(self._number, self._position, device, tuple(trials))], self._store.spent)
        self._position += 1

    def finish(self, verdict: Evaluation) -> None:
        """Keeps the verdict, with all trials once more."""
        spent = self._store.spent
        spent = dataclasses.replace(
            spent,
            evaluations=spent.evaluations + 1,
            wall_s=spent.wall_s + verdict.wall_s,
            gpu_s=spent.gpu_s + verdict.gpu_s,
        )
        self._store.record([EvaluationEntry(self._number, Purpose.SEARCH, verdict)], spent)

    def _read(self) -> bool:
        """Whether there is no request that waits for its verdict."""
        judged = True
        for _, entry in self._store.journal():
            if isinstance(entry, Request):
                self._number, self._position, judged = entry.number, 0, False
            elif isinstance(entry, TrialEntry):
                self._position += 1
                self._trials += [(entry.device, trial) for trial in entry.trials]
            elif isinstance(entry, EvaluationEntry):
                judged = True
                self._trials += [(entry.evaluation.device, trial) for trial in entry.evaluation.trials]
        return judged

    def _begin(self, variant: Variant) -> None:
        self._number, self._position = self._number + 1, 0
        lineage = f"{variant.task}/0/{self._number}"
        request = Request(self._number, variant.task, 0, lineage, "start", ())
        spent = dataclasses.replace(self._store.spent, proposals=self._store.spent.proposals + 1)
        self._store.record([request, OutcomeEntry(self._number, Proposal(variant.source, "tuned alone"), variant)], spent)


def _opened(url: str) -> PopulationStore | None:
    """The store, owned; None where there is none yet."""
    try:
        return open_store(url, write=True)
    except (StoreInUseError, StoreVersionError):
        raise
    except StoreError:  # there is none; any other reason is found again by who makes one
        return None


def _check(store: PopulationStore, url: str, tasks: str, variant: Variant) -> None:
    """Whether a store is that of this kernel's tuning.

    Raises:
        InputError: It is not.
    """
    where, action = f"--store {url}", "give another one, or take its trials over with --transfer"
    if store.header.name != NAME:
        raise InputError(where, action=f"is the store of a search, {store.header.name!r}: {action}")
    if json.loads(store.header.tasks) != json.loads(tasks):
        raise InputError(where, action=f"holds trials of another task, or of an earlier text of {variant.task}: {action}")
    others = {entry.variant for _, entry in store.journal() if isinstance(entry, OutcomeEntry)} - {variant, None}
    if others:
        raise InputError(where, action=f"holds trials of another kernel, or of an earlier text of this one: {action}")


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
        for trials in _tunings(store, task):
            fastest: dict[str, float] = {}
            for trial in trials:
                if trial.latency_us is not None:
                    fastest[trial.case] = min(trial.latency_us, fastest.get(trial.case, trial.latency_us))
            for trial in trials:
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


def _tunings(store: PopulationStore, task: str) -> Iterator[Sequence[Trial]]:
    """The trials of each request of a task, in order; those of one without a verdict too."""
    found: dict[int, list[Trial]] = {}
    for _, entry in store.journal():
        if isinstance(entry, Request) and entry.task == task:
            found[entry.number] = []
        elif isinstance(entry, TrialEntry) and entry.number in found:
            found[entry.number] += entry.trials
        elif isinstance(entry, EvaluationEntry) and entry.number in found and entry.purpose is Purpose.SEARCH:
            found[entry.number] = list(entry.evaluation.trials)
    yield from found.values()
