"""`triton-evolve run` and `resume`: from a configuration or a store to an exported front."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform
import re
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from evo.commands.console import make_console
from evo.commands.interruption import INTERRUPTED, Interruption
from evo.commands.readiness import check_place, check_quickly, check_unchanged, load_run, task_texts
from evo.config import RunConfig, read_config
from evo.errors import ConfigError, InputError, StoreError
from evo.records import EventKind, LatencyKind
from evo.tasks.base import Task
from population_store.base import PopulationStore, RunHeader
from population_store.opening import open_store

RUNS = Path("runs")

_MORE = {"wall seconds": "resume STORE --wall-s S", "dollars": "resume STORE --dollars D", "GPU seconds": "run FILE --continue"}
_MORE |= {"budget.tokens": _MORE["GPU seconds"], "tokens is used": _MORE["GPU seconds"]}
"""What was used up, as reasons say it → the command that goes on with more of it; the first that fits."""


@dataclasses.dataclass(frozen=True)
class Overrides:
    """What the command line changes in a configuration; None leaves it.

    Attributes:
        address: Of a Ray cluster.
        export: Folder of the exported front; None means beside the store.
        no_export: Exports nothing at the end.
        evaluations, wall_s, dollars: Limits of the budget.
        accept_weak_tasks: Searches tasks that a known cheat passes.
        library: Further places of good kernels, for this session.
    """

    address: str | None = None
    export: Path | None = None
    no_export: bool = False
    evaluations: int | None = None
    wall_s: float | None = None
    accept_weak_tasks: bool = False
    library: tuple[str, ...] = ()
    dollars: float | None = None

    def apply(self, config: RunConfig) -> RunConfig:
        """The configuration with the changes.

        Raises:
            ConfigError: A place of the library is missing.
        """
        given: dict[str, Any] = {"evaluations": self.evaluations, "wall_s": self.wall_s, "dollars": self.dollars}
        budget = dataclasses.replace(config.budget, **{key: value for key, value in given.items() if value is not None})
        cluster = config.cluster.model_copy(update={"address": self.address or config.cluster.address})
        accepted = self.accept_weak_tasks or config.accept_weak_tasks
        for place in self.library:
            if "://" not in place and not Path(place).expanduser().exists():
                raise ConfigError("--library", given=place, action="no such population store or folder")
        library = tuple(dict.fromkeys((*config.library, *map(absolute_store, self.library))))
        changed = {"budget": budget, "cluster": cluster, "accept_weak_tasks": accepted, "library": library}
        return config.model_copy(update=changed)


def run_command(path: Path, store: str | None, overrides: Overrides) -> int:
    """Starts the search that a configuration file describes.

    Returns:
        Exit status.

    Raises:
        InputError: The file, a task, an operator, the store or the device cannot be used; or a known cheat would pass a task.
    """
    config = overrides.apply(read_config(path))
    where = store or config.store
    place = absolute_store(where) if where else str(_free_path(config.name))
    if "://" not in place and Path(place).exists():
        raise StoreError(place, action="exists already: go on with it by `triton-evolve resume`, or give another --store")
    check_place(place)
    check_quickly(config, str(path))
    from evo.commands.seeding import with_seeds

    config = with_seeds(config.model_copy(update={"store": place}))
    tasks = load_run(config, str(path))
    if config.evaluator == "kernels":  # others need not judge
        from evo.commands.weak_tasks import refuse_weak_tasks

        refuse_weak_tasks(config, tasks)
    return _search(config, tasks, overrides, resumed=False)


def resume_command(store: str, overrides: Overrides, given: RunConfig | None = None) -> int:
    """Goes on with the run of a store.

    Args:
        store: Path or URL.
        overrides: Of the command line.
        given: The configuration file as it is now, where the run is gone on with by it.

    Returns:
        Exit status.

    Raises:
        InputError: The store cannot be used, or a task changed since the run began.
    """
    with open_store(store, write=True) as opened:  # migrates an older schema, and tells at once if another run owns it
        header = opened.header
        quarantined = dict.fromkeys(event.reason for event in opened.events() if event.kind is EventKind.QUARANTINED)
    recorded = RunConfig.from_text(header.config, f"{store}: its configuration")
    cluster = recorded.cluster.model_copy(update={"address": None})  # that of the first session may be gone
    if given is not None:
        from evo.commands.continuing import as_it_began

        recorded = as_it_began(recorded, given, "the file")
    config = overrides.apply(recorded.model_copy(update={"store": absolute_store(store), "cluster": cluster}))
    tasks = load_run(config, store)
    check_unchanged(tasks, json.loads(header.tasks))
    for reason in quarantined:
        typer.echo(f"in quarantine before, and used again only if it passes its health check now: {reason}")
    return _search(config, tasks, overrides, resumed=True)


def make_header(config: RunConfig, tasks: Mapping[str, Task]) -> RunHeader:
    """What identifies a new run."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "triton", "ray", "optuna")}
    return RunHeader(
        name=config.name,
        seed=config.seed,
        config=config.to_text(),
        tasks=json.dumps(task_texts(tasks)),
        versions=json.dumps({"python": platform.python_version(), "triton-evolve": _own_version(), **versions}),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _search(config: RunConfig, tasks: Mapping[str, Task], overrides: Overrides, *, resumed: bool) -> int:
    try:
        return _drive(config, tasks, overrides, resumed=resumed)
    except SystemExit:  # the handler that Ray has while it starts
        return _interrupted_at_the_start("interrupted by SIGTERM")
    except KeyboardInterrupt:  # the second signal
        typer.echo(f"interrupted at once; what was recorded by then is in {config.store}")
        return INTERRUPTED


def _interrupted_at_the_start(reason: str) -> int:
    typer.echo(f"{reason} while Ray was starting; nothing was begun")
    return INTERRUPTED


def _drive(config: RunConfig, tasks: Mapping[str, Task], overrides: Overrides, *, resumed: bool) -> int:
    from evo.cluster.devices import resolve_device
    from evo.cluster.running import Driver
    from evo.cluster.session import address_option, ray_session
    from evo.cluster.spec import RunSpec
    from evo.reporting.progress import progress_display

    store = str(config.store)
    console = make_console()
    with Interruption() as interruption, ray_session(config.cluster) as capacity:
        interruption.install()  # Ray has put its own handlers in place
        if interruption.reason is not None:
            return _interrupted_at_the_start(interruption.reason)
        device, target, model = resolve_device(config, capacity, lambda: interruption.reason)
        # Recorded with the run: a store must not mix estimates and measurements because it is resumed where there is a GPU.
        cluster = config.cluster.model_copy(update={"device": "gpu" if device == "gpu" else "cpu", "device_model": model})
        config = config.model_copy(update={"target": target, "cluster": cluster})
        spec = RunSpec(config, store, None if resumed else make_header(config, tasks), device)
        console.print(f"{'resuming' if resumed else 'starting'} {config.name} on {device}; store: {store}")
        with progress_display(console, latency_kind_on(config, device)) as observe:
            reason = Driver(spec, capacity, observe, lambda: interruption.reason).run()
    # From here on Ctrl-C ends the command at once again: Ray left handlers of its own, and an export can be made later.
    if interruption.reason is not None:
        typer.echo(
            f"{interruption.reason}; everything finished is recorded. Go on with: triton-evolve resume {shlex.quote(store)}"
            f"{address_option(config.cluster)}"
        )
        return INTERRUPTED
    out = None if overrides.no_export else (overrides.export or _front_folder(store)).expanduser()
    return _report(console, store, out, reason, address_option(config.cluster))


def latency_kind_on(config: RunConfig, device: str) -> LatencyKind:
    """How latencies come about on a device."""
    if config.evaluator == "simulated":
        return LatencyKind.SIMULATED
    return LatencyKind.MEASURED if device == "gpu" else LatencyKind.MODELLED


def _report(console: Console, store: str, out: Path | None, reason: str, where: str) -> int:
    from evo.reporting.status import StatusReader, best_table

    with open_store(store) as opened:
        look = StatusReader(opened).look(top=3)
        rows = [row for best in look.best.values() for row in best]
        console.print(f"\n{reason}\n")
        console.print(best_table(rows) if rows else _nothing(look.spent.evaluations))
        # A simulated figure is of no kernel that could be launched.
        measured = any(row.search.latency_kind is not LatencyKind.SIMULATED for row in rows)
        exported = _export(opened, out) if out is not None and measured else True
    typer.echo(f"store:        {store}")
    typer.echo(f"look further: triton-evolve status {shlex.quote(store)}")
    typer.echo(f"go on:        {going_on(store, reason)}{where}   (more than so far)")
    return 0 if exported else 1


def going_on(store: str, reason: str) -> str:
    """The command that gives a run more of what it ended for."""
    command = next((command for used, command in _MORE.items() if used in reason), "resume STORE --evaluations N")
    return f"triton-evolve {command.replace('STORE', shlex.quote(store))}"


def _nothing(evaluated: int) -> str:
    if not evaluated:
        return "nothing was evaluated: the budget was used before the first evaluation ended; give it more, as below"
    return "no variant passed; `triton-evolve status` says what they failed on"


def _export(store: PopulationStore, out: Path) -> bool:
    """Exports the front; a failure is told, and leaves what was searched as it is."""
    from evo.reporting.export import export_front

    try:
        report = export_front(store, out)
    except InputError as error:
        typer.echo(f"\ntriton-evolve: the front was not exported: {' '.join(str(error).split())}", err=True)
        return False
    kernels = sum(len(task.kernels) for task in report.tasks)
    typer.echo(
        f"\nPareto front: {report.out} ({kernels} kernel{'' if kernels == 1 else 's'}; check with: python -m pytest {report.test})"
    )
    return True


def absolute_store(store: str) -> str:
    """A path made absolute, a URL as it is."""
    return store if "://" in store else str(Path(store).expanduser().resolve())


def _free_path(name: str) -> Path:
    """``runs/NAME.sqlite``, or the first free ``runs/NAME-N.sqlite``: a store is never overwritten."""
    path, number = RUNS / f"{name}.sqlite", 2
    while path.exists():
        path, number = RUNS / f"{name}-{number}.sqlite", number + 1
    return path.resolve()


def _front_folder(store: str) -> Path:
    if "://" in store and not store.startswith("sqlite:///"):
        return RUNS / "front"
    path = Path(store.removeprefix("sqlite:///"))
    return path.with_name(re.sub(r"\W", "_", path.stem) + "_front")  # a name that Python can import


def _own_version() -> str:
    try:
        return importlib.metadata.version("triton-evolve")
    except importlib.metadata.PackageNotFoundError:
        return "checkout"
