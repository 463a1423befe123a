"""Which variants of a store are exported, of which tasks, and for which target."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evo.errors import InputError
from evo.records import CaseResult, Evaluation, LatencyKind
from evo.search.front import Point, pareto_front
from evo.tasks.base import Task
from evo.tasks.loading import builtin_tasks, load_task
from evo.tracing.targets import TARGETS
from population_store.base import PopulationStore, Ranked, RunHeader


@dataclass(frozen=True)
class Member:
    """One variant of a front.

    Attributes:
        row: As ranked.
        evaluation: The verdict that counts: the verification where there is one.
    """

    row: Ranked
    evaluation: Evaluation

    @property
    def verified(self) -> bool:
        """Whether it was judged again in fresh processes; where it was measured, on held-out cases and with all pairs too."""
        return self.row.verify is not None

    def case(self, name: str) -> CaseResult:
        """The result on a training case."""
        return next(case for case in self.evaluation.cases if case.case == name)


def front_members(store: PopulationStore, task: str) -> tuple[Member, ...]:
    """The Pareto front over latency, error and peak memory, fastest first.

    Estimates and measurements do not compare: where anything was measured, only that counts; where anything was verified, only that: a
    tuned configuration is known to launch what was judged by its verification alone. Simulated results are of no kernel.
    """
    members = [Member(row, row.verify or row.search) for row in store.ranking(task)]
    for kind in (LatencyKind.MEASURED, LatencyKind.MODELLED):
        alike = {item.row.variant.variant_id: item for item in members if item.evaluation.latency_kind is kind}
        alike = {key: item for key, item in alike.items() if item.verified} or alike
        if alike:
            front = pareto_front(Point.of(item.evaluation) for item in alike.values())
            return tuple(sorted((alike[point.variant_id] for point in front), key=lambda item: item.evaluation.latency_us))
    return ()


def recorded_tasks(header: RunHeader, task: str | None) -> dict[str, str]:
    """Name → text of the tasks to export.

    Raises:
        InputError: The run has no such task.
    """
    texts: dict[str, str] = json.loads(header.tasks)
    if task is None:
        return texts
    if task not in texts:
        raise InputError(f"run {header.name}: --task", given=task, allowed=texts)
    return {task: texts[task]}


def load_recorded(header: RunHeader, name: str, text: str) -> Task:
    """The task of that name, from where the run took it.

    Raises:
        InputError: It is gone, or changed since the run began.
    """
    config = json.loads(header.config)
    references = config.get("tasks", ())
    scored = config.get("evaluation", {}).get("training_cases")
    known = [*map(str, references), *(item for item in builtin_tasks() if item == name)]
    # To load one takes a tenth of a second; most are called like their file, and then the first one is it.
    for reference in sorted(known, key=lambda item: Path(item).stem != name):
        task = load_task(reference)
        if task.name != name:
            continue
        if task.path is not None and text and task.path.read_text(encoding="utf-8") != text:
            raise InputError(
                str(task.path),
                action="it changed since the run began, so nothing says that kernels fit it: restore it and export again",
            )
        return dataclasses.replace(task, training_cases=task.training_cases[:scored])
    raise InputError(f"task {name}", given="not among the run's task files", allowed=references)


def target_of(header: RunHeader, members: Sequence[Member]) -> str:
    """The key of the target that plans were traced for.

    Raises:
        InputError: Neither the run nor its device tells.
    """
    configured = json.loads(header.config).get("target", "auto")
    if configured in TARGETS:
        return str(configured)
    device = members[0].evaluation.device
    for key, target in TARGETS.items():
        if device.removesuffix(" (modelled)") in (key, target.name):
            return key
    raise InputError(f"run {header.name}: target", given=f"{configured} on {device}", allowed=TARGETS)
