"""Known cheats turned on tasks, for a person: `doctor --task` tells everything, `run` refuses tasks that one of them passes."""

from __future__ import annotations

from collections.abc import Mapping

import typer
from rich.console import Console
from rich.table import Table

from evo.config import RunConfig
from evo.errors import TaskError
from evo.evaluation.weakness import Bounds, Diagnosis, Finding, Reach, diagnose
from evo.tasks.base import Task
from evo.tasks.loading import load_task
from evo.tasks.names import check_reference
from evo.tasks.narrowing import narrowings

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
    check_reference(reference, where=where)
    return load_task(reference)


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
    by_cure = _by_cure(found)
    for number, (cure, findings) in enumerate(by_cure.items(), 1):
        console.print(f"{number}. Would pass; cure: {cure}", highlight=False, soft_wrap=True)
        console.print(_table(findings))
    for line in _weak_cases(found):
        console.print(line)
    stopped = sum(finding.reach is Reach.STOPPED for finding in found.findings)
    console.print(
        f"\n{stopped} of {len(found.findings)} cheats are stopped. Tried on {device}, on cases {', '.join(found.looked_at)}."
    )
    for name, reason in found.skipped:
        console.print(f"not looked at: case {name}: {reason}")
    for remark in remarks(task):
        console.print(f"remark: {remark}", highlight=False, soft_wrap=True)
    unfit = [f"the reference itself does not pass: {text}" for text in found.unfit]
    return unfit + [_problem(findings) for findings in by_cure.values()]


def remarks(task: Task) -> list[str]:
    """What makes a task say less than it could, though no cheat passes it for that."""
    found = [
        f"the reference narrows float64 at {place}; its expected values are no more exact than that" for place in narrowings(task)
    ]
    if not task.held_out_cases:
        found.append("held_out_cases is empty: a kernel that is right for the shapes of the search alone is never found out")
    return found


def _by_cure(found: Diagnosis) -> dict[str, list[Finding]]:
    groups: dict[str, list[Finding]] = {}
    for finding in found.weaknesses:
        groups.setdefault(finding.cure, []).append(finding)
    return groups


def _problem(findings: list[Finding]) -> str:
    """One line for cheats with one cure."""
    first, *others = findings
    return first.text + (f" (that also stops {len(others)} more: {', '.join(item.cheat for item in others)})" if others else "")


def _table(findings: list[Finding]) -> Table:
    table = Table(
        "cheat", "what it stands for", "gets through", "why", box=None, header_style="bold", pad_edge=False, style="red"
    )
    for finding in findings:
        why = f"{finding.error_ratio:.2g} of the allowed error in {finding.place}: {finding.why}"
        table.add_row(finding.cheat, finding.models, finding.reach, why)
    return table


def _weak_cases(found: Diagnosis) -> list[str]:
    """A line for each case that by itself would let cheats pass, and why it would."""
    passed: dict[tuple[str, str], list[str]] = {}
    for finding in found.findings:
        if finding.reach is Reach.CASES:
            passed.setdefault((finding.place, finding.why), []).append(finding.cheat)
    return [f"{place} alone would let pass: {', '.join(names)} ({why})" for (place, why), names in passed.items()]
