"""What is checked of a run before Ray starts, so that a mistake is answered at once: names, packages, keys, places, and tasks of a run
that is gone on with.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping

from evo.commands.doctor import conflict
from evo.config import RunConfig
from evo.errors import ConfigError, InputError, TaskError, TaskErrors
from evo.registry import evaluator_factory, find_operators, operator_names
from evo.tasks.base import Task
from evo.tasks.names import check_reference
from evo.tracing.targets import target_named
from operators.base import OperatorKind
from population_store.opening import check_url


def load_run(config: RunConfig, where: str) -> Mapping[str, Task]:
    """Checks what can be checked without Ray, so that a mistake is answered at once.

    Returns:
        The tasks by name.

    Raises:
        InputError: A task, operator, model, target or evaluator cannot be used, or a key is missing.
    """
    check_quickly(config, where)
    from evo.cluster.setup import build_operators, load_tasks

    if config.models and config.cluster.address is None:
        build_operators(config, None)  # on this machine proposals need their key here: say so before a store is made
    evaluator_factory(config.evaluator)
    try:
        tasks = load_tasks(config)
        _check_starts(config, tasks)
        return tasks
    except TaskErrors as error:
        raise TaskErrors(*(TaskError(f"{where}: {each}") for each in error.errors)) from error
    except InputError as error:
        raise type(error)(f"{where}: {error}") from error


def _check_starts(config: RunConfig, tasks: Mapping[str, Task]) -> None:
    """Refuses tasks without a starting kernel where no operator can make one."""
    known = find_operators()
    generating = any(known[name].kind is OperatorKind.GENERATE for name in operator_names(config))
    for name, task in tasks.items():
        if not task.starting_kernels and not generating:
            raise TaskError(
                f"task {name}: no starting kernel",
                action="give one in starting_kernels, or `models:`, so that the operator llm_generate can write the first one",
            )


def check_quickly(config: RunConfig, where: str) -> None:
    """Checks what needs no torch to be seen.

    Raises:
        InputError: A name of a task, operator, model, target or store leads nowhere, a URL holds a password, or packages do not go
            together.
    """
    for place in filter(None, (config.store, *config.library)):
        check_url(place)
    check_names(config, where)
    from evo.cluster.setup import check_models

    other = conflict()
    if other is not None:
        raise ConfigError("this environment", action=other)
    if config.target != "auto":
        target_named(config.target)
    check_models(config)
    operator_names(config)


def check_names(config: RunConfig, where: str) -> None:
    """Refuses task names and paths that lead nowhere, all at once and before anything large is imported.

    Raises:
        TaskError: There are some.
    """
    wrong: list[TaskError] = []
    for position, reference in enumerate(config.tasks):
        try:
            check_reference(reference, where=f"{where}: tasks.{position}")
        except TaskError as error:
            wrong.append(error)
    if wrong:
        raise TaskErrors.of(wrong)


def task_texts(tasks: Mapping[str, Task]) -> dict[str, str]:
    """Of each task's file, as a run keeps it; empty where there is none."""
    return {name: task.path.read_text(encoding="utf-8") if task.path else "" for name, task in tasks.items()}


def check_unchanged(tasks: Mapping[str, Task], recorded: Mapping[str, str]) -> None:
    """Refuses tasks whose text is another one than that which a run began with.

    Raises:
        TaskError: There is one.
    """
    if set(tasks) != set(recorded):
        action = "a run keeps its tasks: restore them, or start a new run under another name"
        raise TaskError("tasks", given=sorted(tasks), allowed=sorted(recorded), action=action)
    for name, text in task_texts(tasks).items():
        if recorded.get(name) != text:
            where = str(tasks[name].path or name)
            raise TaskError(
                where, action="it changed since the run began, so results would not compare: restore it, or start a new run"
            )


def check_place(store: str) -> None:
    """Refuses a file that cannot be made, and a URL that no store can have, before minutes went into starting.

    Raises:
        StoreError: It is one.
    """
    check_url(store)
    if "://" in store and not store.startswith("sqlite:///"):
        return
    from population_store.sqlite_file import clear_errors, path_of

    path = path_of(store)
    with clear_errors(path):
        folder = next(
            parent for parent in path.parents if parent.exists()
        )  # nothing is made before all else is known to be right
        tempfile.TemporaryFile(dir=folder).close()
