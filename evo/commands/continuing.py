"""`triton-evolve run --continue`: starts the search of a file, or goes on with it where its store exists."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import typer

from evo.commands.search import RUNS, Overrides, absolute_store, resume_command, run_command
from evo.config import RunConfig, read_config
from evo.errors import StoreInUseError
from population_store.opening import open_store, store_exists

_OF_THE_FILE = ("tasks", "library", "budget", "store", "seeds", "target", "accept_weak_tasks")
"""Keys that either count as the file has them now, or are found out anew when a run begins."""

DYING_S = 60.0
"""On a cluster the engine outlives a driver that was killed until Ray has noticed."""
LOOK_S = 0.5


def continue_command(path: Path, store: str | None, overrides: Overrides) -> int:
    """Starts or goes on.

    Of a run that goes on, the budget, and where tasks and the library lie, are as the file has them now; everything else stays as
    the run began. That is said where the two differ.

    Returns:
        Exit status.

    Raises:
        InputError: The file, a task, an operator, the store or the device cannot be used.
    """
    config = overrides.apply(read_config(path))
    place = absolute_store(store or config.store or str(RUNS / f"{config.name}.sqlite"))
    if not store_exists(place):
        return run_command(path, place, overrides)
    wait_for_owner(place)
    return resume_command(place, overrides, config)


def wait_for_owner(store: str, patience_s: float = DYING_S) -> None:
    """Waits until nobody owns a store.

    Raises:
        StoreInUseError: Somebody still does after `patience_s`.
    """
    deadline, told = time.monotonic() + patience_s, False
    while True:
        try:
            open_store(store, write=True).close()
            return
        except StoreInUseError as error:
            if time.monotonic() >= deadline:
                raise
            if not told:
                typer.echo(f"{error}; looking for up to {patience_s:g} s whether it is a killed run's")
                told = True
        time.sleep(LOOK_S)


def as_it_began(recorded: RunConfig, given: RunConfig, where: str) -> RunConfig:
    """The configuration of a run that goes on with a file.

    Args:
        recorded: With which it began.
        given: What the file has now.
        where: What messages call the file.
    """
    differing = _differences(json.loads(recorded.to_text()), json.loads(given.to_text()))
    if differing:
        typer.echo(f"as the run began, not as {where} has it now: {', '.join(differing)}")
    return recorded.model_copy(update={"tasks": given.tasks, "library": given.library, "budget": given.budget})


def _differences(recorded: dict[str, Any], given: dict[str, Any], prefix: str = "") -> list[str]:
    found: list[str] = []
    for key, value in given.items():
        name = f"{prefix}{key}"
        if name in _OF_THE_FILE or name.startswith("cluster"):  # where and how wide is another matter each time
            continue
        if isinstance(value, dict) and isinstance(recorded.get(key), dict):
            found += _differences(recorded[key], value, f"{name}.")
        elif recorded.get(key) != value:
            found.append(name)
    return found
