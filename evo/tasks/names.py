"""Which tasks there are by name, where, and whether a reference leads to one: answered at once, without torch.

A task's name is that of its module, in `evo.tasks` itself or in a package of it that groups tasks of a kind; names are unique over
all groups, so a task may move from one to another without anyone having to call it differently.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import pkgutil
from collections.abc import Mapping
from pathlib import Path

import evo.tasks
from evo.errors import TaskError

_NOT_TASKS = frozenset({"base", "draws", "inputs", "loading", "names", "narrowing", "random_tests", "starts", "text"})


def builtin_tasks() -> tuple[str, ...]:
    """Names of the tasks in the package, sorted."""
    return tuple(sorted(task_modules()))


@functools.cache
def task_modules() -> Mapping[str, str]:
    """Name of each task of the package → its dotted module."""
    found: dict[str, str] = {}
    folders = [("evo.tasks", Path(folder)) for folder in evo.tasks.__path__]
    while folders:
        package, folder = folders.pop()
        for info in pkgutil.iter_modules([str(folder)]):
            if info.ispkg and info.name not in _NOT_TASKS:
                folders.append((f"{package}.{info.name}", folder / info.name))
            elif info.name not in _NOT_TASKS:
                found[info.name] = f"{package}.{info.name}"
    return found


def is_path(reference: str) -> bool:
    """Whether a reference names a file; it is a builtin name or a dotted module otherwise."""
    return reference not in builtin_tasks() and (reference.endswith(".py") or "/" in reference)


def check_reference(reference: str, base: Path | None = None, where: str = "") -> None:
    """Refuses what no task can be loaded from. See `evo.tasks.loading.load_task` for the arguments.

    Args:
        reference, base: As there.
        where: Where the reference was given; empty where the error shall name the reference alone.

    Raises:
        TaskError: There is no such file or module.
    """
    if reference in builtin_tasks():
        return
    if is_path(reference):
        path = ((base or Path.cwd()) / Path(reference).expanduser()).resolve()
        if not path.is_file():
            action = f"give the path of a task file or a builtin name; builtin tasks: {', '.join(builtin_tasks())}"
            raise TaskError(f"{where}: {path}" if where else str(path), given="no such file", action=action)
        return
    try:
        found = importlib.util.find_spec(reference) is not None
    except ModuleNotFoundError as error:  # of a package on the way
        found = error.name is None or not f"{reference}.".startswith(f"{error.name}.")
    except (ImportError, ValueError):
        found = False
    if not found:
        near = difflib.get_close_matches(reference, builtin_tasks(), 1)
        action = f"did you mean {near[0]}?" if near else "a dotted name is that of an importable module"
        allowed = ["a path that ends in .py", *builtin_tasks()]
        given = reference if where else "no such name"
        raise TaskError(where or f"task {reference}", given=given, allowed=allowed, action=action)
