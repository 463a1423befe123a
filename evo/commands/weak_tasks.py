"""Known cheats turned on tasks, for a person: `doctor --task` tells everything, `run` refuses tasks that one of them passes."""

from __future__ import annotations

from collections.abc import Mapping

import typer
from rich.console import Console
from rich.table import Table

from evo.config import RunConfig
from evo.errors import TaskError
from evo.evaluation.weakness import Bounds, Diagnosis, Reach, diagnose
from evo.tasks.base import Task
from evo.tasks.loading import builtin_tasks, load_task

RUN_S = 4.0
"""Seconds that a run may be held up per task."""
DOCTOR_S = 15.0


def refuse_weak_tasks(config: RunConfig, tasks: Mapping[str, Task]) -> None:
    """Tells the weaknesses of a run's tasks, a line each.

    Args:
        config: Of the run; `accept_weak_tasks` lets it start all the same.
        tasks: By name, in the configuration's order.

    Raises:
        TaskError: A known cheat would pass one of them, and that is not accepted.
    """
    weak = []
    for reference, task in zip(config.tasks, tasks.values(), strict=True):
        found = diagnose(task, Bounds(RUN_S, survivors_only=True)).weaknesses
        for finding in found:
            typer.echo(f"weak: {finding.text}", err=True)
        if found:
            weak.append(reference)
    if weak and not config.accept_weak_tasks:
        tells = " and ".join(f"triton-evolve doctor --task {reference}" for reference in weak)
        raise TaskError(
            f"a known cheat would pass {', '.join(weak)}", action=f"{tells} tells more; --accept-weak-task runs it all the same"
        )


def load_named_task(reference: str, where: str = "--task") -> Task:
    """A task that a person named.

    Raises:
        TaskError: There is none of that name; or it is broken, see `evo.tasks.loading.load_task`.
    """
    try:
        return load_task(reference)
    except TaskError as error:
        missing = error.__cause__.name if isinstance(error.__cause__, ModuleNotFoundError) else None
        if missing is None or not f"{reference}.".startswith(f"{missing}."):
            raise
        raise TaskError(where, given=reference, allowed=(*builtin_tasks(), "a path that ends in .py")) from error


def show_task(console: Console, task: Task) -> list[str]:
    """Prints what became of every cheat.

    Returns:
        The problems: weaknesses, and a reference that fails its own judge.

    Raises:
        TaskError: The reference fails on one of the cases.
    """
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = diagnose(task, Bounds(DOCTOR_S), device)
    console.print(_table(found))
    for line in _weak_cases(found):
        console.print(line)
    console.print(f"\n{len(found.findings)} cheats tried on {device}, on cases {', '.join(found.looked_at)}")
    for name, reason in found.skipped:
        console.print(f"not looked at: case {name}: {reason}")
    return [f"the reference itself does not pass: {text}" for text in found.unfit] + [item.text for item in found.weaknesses]


def _table(found: Diagnosis) -> Table:
    table = Table("cheat", "what it stands for", "gets through", "stopped by", box=None, header_style="bold", pad_edge=False)
    for finding in found.findings:
        cases = f"case {finding.passed[0]}" if len(finding.passed) == 1 else f"{len(finding.passed)} cases"
        through = {Reach.STOPPED: "nothing", Reach.CASES: cases}.get(finding.reach, finding.reach)
        stopped = finding.stopped_by or ("" if finding.weak else "being what the task asks for")
        table.add_row(finding.cheat, finding.models, through, stopped, style="red" if finding.weak else None)
    return table


def _weak_cases(found: Diagnosis) -> list[str]:
    """A line for each case that by itself would let cheats pass, and why it would."""
    passed: dict[tuple[str, str], list[str]] = {}
    for finding in found.findings:
        if finding.reach is Reach.CASES:
            passed.setdefault((finding.place, finding.why), []).append(finding.cheat)
    return [f"{place} alone would let pass: {', '.join(names)} ({why})" for (place, why), names in passed.items()]
