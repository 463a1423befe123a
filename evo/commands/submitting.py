"""`triton-evolve submit`, and what `ray submit FILE experiments/evolve.py` runs: a search as a job of a Ray cluster."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from evo.cluster.jobs import Job, Jobs
from evo.commands.interruption import INTERRUPTED
from evo.config import RunConfig, read_config, write_config
from evo.errors import ConfigError
from evo.tasks.names import check_reference, is_path

PACKED = "search.yaml"
"""The configuration in the folder that goes to the cluster."""


@dataclass(frozen=True)
class SubmitOptions:
    """What `submit` may be told, besides its file.

    Attributes:
        address: Of the cluster's job server; None for the Ray of this host.
        action: ``follow`` (begin or go on, and show the log), ``logs``, ``status`` or ``stop``.
    """

    address: str | None = None
    action: str = "follow"


def submit_command(path: Path, options: SubmitOptions) -> int:
    """Begins the search of a file on a cluster, or goes on with it, and follows it; or asks after the last one, or stops it.

    Returns:
        Exit status: that of the search where it was followed to its end.

    Raises:
        InputError: The file cannot be used, or no job server answers.
        TritonEvolveError: The connection was lost; the search goes on.
    """
    from evo.commands.readiness import check_quickly

    config = read_config(path)
    check_quickly(config, str(path))
    jobs = Jobs(options.address)
    if options.action == "follow":
        return _begin(path, config, jobs)
    job = jobs.newest(config.name)
    if job is None:
        typer.echo(f"no search named {config.name} was submitted since the cluster began")
        return 1
    if options.action == "logs":
        typer.echo(jobs.log(job.id), nl=False)
    elif options.action == "stop":
        job = jobs.stop(job)
        typer.echo(f"job {job.id}: {job.status}; what was recorded is kept, and the same submit goes on with it")
    else:
        typer.echo(f"job {job.id}: {job.status} ({job.message})")
        typer.echo("".join(jobs.log(job.id).splitlines(keepends=True)[-10:]), nl=False)
    return 0


def _begin(path: Path, config: RunConfig, jobs: Jobs) -> int:
    with tempfile.TemporaryDirectory(prefix="triton-evolve-") as name:
        folder = Path(name)
        packed = pack(path, config, folder)
        typer.echo(f"read {path}: {packed.to_text()}")
        job, begun = jobs.start(config.name, entrypoint(config), folder)
    verb = "begun" if begun else "goes on already; what the file says now counts from the next job on"
    typer.echo(f"job {job.id}: {verb}")
    try:
        job = jobs.follow(job, _write)
    except KeyboardInterrupt:
        typer.echo(f"\nno longer followed; the search goes on as job {job.id}. To stop it: triton-evolve submit FILE --stop")
        return INTERRUPTED
    return _status(job)


def pack(path: Path, config: RunConfig, folder: Path) -> RunConfig:
    """Puts what a cluster needs of a search into a folder: its configuration, task files of the user with their kernels, and what the
    library has on this machine.

    Args:
        path: That was read.
        config: What was read.
        folder: Empty.

    Returns:
        The configuration as it is there.

    Raises:
        InputError: A task cannot be loaded, or its kernels lie outside its folder; or a model's file would be looked for in the folder
            of the job.
    """
    _check_places(config, path)
    tasks = []
    for position, reference in enumerate(config.tasks):
        where = f"{path}: tasks.{position}"
        check_reference(reference, where=where)
        tasks.append(_pack_task(Path(reference), folder / "tasks" / str(position), where) if is_path(reference) else reference)
    library = _pack_library(config.library, folder / "library")
    packed = config.model_copy(update={"tasks": tuple(tasks), "library": library})
    write_config(packed, folder / PACKED)
    return packed


def entrypoint(config: RunConfig) -> str:
    """The shell command of a job: it starts the search, or goes on with it where its store is on the head."""
    # The working directory of a job is a copy that goes with it, so what is to stay lies in the home of the head.
    store = config.store or f"runs/{config.name}.sqlite"
    front = [] if "://" not in store else ["--export", f"~/runs/{config.name}_front"]
    if "://" not in store and not store.startswith(("/", "~")):
        store = f"~/{store}"
    command = ["python", "-m", "evo.main", "run", PACKED, "--continue", "--address", "auto", "--store", store, *front]
    # Ray ends the shell, too, and would wait for what was below it until its patience is over where nobody takes in orphans.
    return f"exec {shlex.join(command)}"


def _check_places(config: RunConfig, path: Path) -> None:
    """Files of models are the head's, where proposals are made: they may be large, or are written there."""
    from operators.models.building import PATHS

    for position, section in enumerate(config.models):
        for key in sorted(PATHS & section.options.keys()):
            where, given = f"{path}: models.{position}.options.{key}", str(section.options[key])
            if not given.startswith(("/", "~")):
                action = "on a cluster this is a place on the head, outside the job's folder, which goes with the job: begin it with / or ~"
                raise ConfigError(where, given=given, action=action)
            typer.echo(f"{where}: {given} is looked for on the head; it does not go along")


def _pack_library(places: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Writes down the kernels of places on this machine, of stores their best, and what operators achieved there."""
    here = [place for place in places if "://" not in place]
    if not here:
        return tuple(places)
    from evo.search.earlier import read_earlier, write_earlier
    from evo.search.library import read_library

    folder.mkdir()
    write_earlier(read_earlier(here), folder)
    for number, example in enumerate(read_library(here)):
        (folder / f"{number:04}.py").write_text(example.source, encoding="utf-8")
    return (*(place for place in places if "://" in place), folder.name)


def _pack_task(source: Path, folder: Path, where: str) -> str:
    """Copies a task file and its starting kernels; its place relative to the configuration."""
    from evo.tasks.loading import load_task

    folder.mkdir(parents=True)
    shutil.copy(source, folder / source.name)
    for kernel in load_task(str(source)).starting_kernels:
        if "\n" in kernel:  # the text itself
            continue
        place = (folder / kernel).resolve()
        if not place.is_relative_to(folder.resolve()):
            action = "a task that goes to a cluster has its kernels in its own folder, or below"
            raise ConfigError(where, given=kernel, action=action)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source.parent / kernel, place)
    return str((folder / source.name).relative_to(folder.parents[1]))


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _status(job: Job) -> int:
    if job.status == "SUCCEEDED":
        return 0
    if job.status == "STOPPED":
        typer.echo(f"job {job.id} was stopped; what was recorded is kept, and the same command goes on with it")
        return INTERRUPTED
    wrong = job.exit_code == 2  # something given: its log says what, and the same command would fail again
    more = "" if wrong else "; what was recorded is kept, and the same command goes on with it"
    typer.echo(f"job {job.id} failed: {job.message}{more}", err=True)
    return job.exit_code or 1
