"""Gives tasks without a starting kernel one that torch.compile makes of their reference, before a run begins."""

from __future__ import annotations

import typer

from evo.config import RunConfig
from evo.errors import InputError
from evo.tasks.base import Task
from evo.tasks.names import check_reference

TARGET = "cuda:90"
"""Where the configuration leaves the target open; the generated kernels run on others too, from which tuning goes on."""


def with_seeds(config: RunConfig) -> RunConfig:
    """The configuration with the seeds of tasks that have no starting kernel. A seed that cannot be made is told, and no error.

    Mistakes in tasks are left to whoever loads them next and can tell of all at once.
    """
    if config.evaluator != "kernels":
        return config
    seeds: dict[str, tuple[str, ...]] = {}
    for reference in config.tasks:
        task = _without_start(reference)
        if task is not None:
            made = _made(task, TARGET if config.target == "auto" else config.target)
            if made:
                seeds[task.name] = made
    return config.model_copy(update={"seeds": seeds}) if seeds else config


def _without_start(reference: str) -> Task | None:
    try:
        check_reference(reference)
        from evo.tasks.loading import load_task

        task = load_task(reference)
    except InputError:
        return None
    return None if task.starting_kernels else task


def _made(task: Task, target: str) -> tuple[str, ...]:
    from evo.seeding.seeds import compiler_seeds

    found = []
    for seed in compiler_seeds(task, target):
        if seed.failure:
            typer.echo(f"task {task.name}: torch.compile gives no starting kernel ({seed.form}): {seed.failure}")
        else:
            calls = f", calling {', '.join(seed.operators)}" if seed.operators else ""
            typer.echo(f"task {task.name}: starts from what torch.compile makes of its reference ({seed.form}{calls})")
            found.append(seed.source)
    return tuple(found)
