"""The command line `triton-evolve`: arguments and exit statuses; what commands do is in `evo.commands`.

Exit status 0: done. 1: failed. 2: something given is wrong (one line says what). 130: stopped by Ctrl-C or SIGTERM.
Torch, Triton and Ray are imported by the commands that need them, so that `--help` and mistakes are quick.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from evo.commands.bench_group import bench
from evo.commands.given import check_given
from evo.commands.interruption import INTERRUPTED, ended_by_signals
from evo.commands.one_kernel import rewrite, trace, tune
from evo.errors import InputError, TaskErrors, TritonEvolveError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Search-based evolutionary optimizer of Triton kernels.",
)

app.add_typer(bench, name="bench")

store_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Handles population stores.")
app.add_typer(store_app, name="store")

StoreArgument = Annotated[str, typer.Argument(help="Path or URL of a population store.")]
LibraryOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Earlier store, or folder of kernels, to show models similar good kernels from; may be given several times."
    ),
]
AddressOption = Annotated[
    str | None, typer.Option(help="Ray cluster to join: auto or host:port; without, a local one is started.")
]
ExportOption = Annotated[Path | None, typer.Option("--export", help="Folder for the exported front; default: beside the store.")]
NoExportOption = Annotated[bool, typer.Option("--no-export", help="Export nothing at the end.")]
EvaluationsOption = Annotated[int | None, typer.Option(min=1, help="Instead of budget.evaluations.")]
WallOption = Annotated[float | None, typer.Option(min=0.0, help="Instead of budget.wall_s, seconds.")]
DollarsOption = Annotated[float | None, typer.Option(min=0.0, help="Instead of budget.dollars.")]
TaskOption = Annotated[str | None, typer.Option(help="Only this task.")]


@app.command()
def init(
    reference: Annotated[
        str | None, typer.Option(help="FILE:NAME of a function or an nn.Module class in PyTorch, e.g. model.py:Model.")
    ] = None,
    inputs: Annotated[
        str | None, typer.Option(help='Example inputs, e.g. "f32[1024,512], i64[1024], 3"; default: get_inputs() of the file.')
    ] = None,
    kernel: Annotated[str | None, typer.Option(help="FILE:NAME of a kernel's wrapper to start from.")] = None,
    name: Annotated[str | None, typer.Option(help="Of the task; default: that of the reference.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; default: NAME_task.py.")] = None,
) -> None:
    """Writes a task file from a reference in PyTorch and an example of its inputs."""
    from evo.commands.initialising import InitOptions, init_command

    raise typer.Exit(init_command(InitOptions(reference, inputs, kernel, name, out)))


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="YAML file, e.g. configs/quickstart.yaml.")],
    store: Annotated[str | None, typer.Option(help="Path or URL of the store to create; default: runs/NAME.sqlite.")] = None,
    address: AddressOption = None,
    export: ExportOption = None,
    no_export: NoExportOption = False,
    evaluations: EvaluationsOption = None,
    wall_s: WallOption = None,
    accept_weak_task: Annotated[
        bool, typer.Option("--accept-weak-task", help="Search a task that a known cheat passes.")
    ] = False,
    library: LibraryOption = None,
    go_on: Annotated[bool, typer.Option("--continue", help="Go on with the search where its store exists.")] = False,
    dollars: DollarsOption = None,
) -> None:
    """Starts a search and exports the Pareto front at its end."""
    from evo.commands.search import Overrides, run_command

    overrides = Overrides(address, export, no_export, evaluations, wall_s, accept_weak_task, tuple(library or ()), dollars)
    if go_on:
        from evo.commands.continuing import continue_command

        raise typer.Exit(continue_command(config, store, overrides))
    raise typer.Exit(run_command(config, store, overrides))


@app.command()
def submit(
    config: Annotated[Path, typer.Argument(help="YAML file, e.g. configs/evolve.yaml.")],
    address: Annotated[
        str | None, typer.Option(help="Job server of the cluster, e.g. http://127.0.0.1:8265; default: the Ray of this host.")
    ] = None,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the search; the next submit goes on with it.")] = False,
    logs: Annotated[bool, typer.Option("--logs", help="Print what it has written.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Say how it stands.")] = False,
) -> None:
    """Starts a search on a running Ray cluster or goes on with it, and follows it; Ctrl-C only ends the following."""
    from evo.commands.submitting import SubmitOptions, submit_command

    asked = [name for name, given in (("stop", stop), ("logs", logs), ("status", status)) if given]
    if len(asked) > 1:
        raise InputError(f"--{asked[1]}", action=f"cannot be given with --{asked[0]}")
    raise typer.Exit(submit_command(config, SubmitOptions(address, asked[0] if asked else "follow")))


@app.command()
def resume(
    store: StoreArgument,
    address: AddressOption = None,
    export: ExportOption = None,
    no_export: NoExportOption = False,
    evaluations: EvaluationsOption = None,
    wall_s: WallOption = None,
    library: LibraryOption = None,
    dollars: DollarsOption = None,
) -> None:
    """Goes on with a search that was stopped or killed; a larger budget prolongs one that ended."""
    from evo.commands.search import Overrides, resume_command

    overrides = Overrides(address, export, no_export, evaluations, wall_s, library=tuple(library or ()), dollars=dollars)
    raise typer.Exit(resume_command(store, overrides))


@app.command()
def status(
    store: StoreArgument,
    watch: Annotated[float | None, typer.Option(min=0.2, help="Look again every so many seconds, until Ctrl-C.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Variants shown per task.")] = 5,
) -> None:
    """Shows how a run stands, also while it runs."""
    from evo.commands.looking import status_command

    status_command(store, watch, top)


@app.command()
def report(
    store: StoreArgument,
    k: Annotated[str, typer.Option("--k", help="Values of k for pass@k, separated by commas.")] = "1,2,4,8,16,32",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Shows how often proposals could be run, were correct and were faster, and pass@k."""
    from evo.commands.looking import report_command

    report_command(store, k, as_json)


@app.command()
def operators(
    stores: Annotated[list[str], typer.Argument(help="Paths or URLs of population stores.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Shows what each operator, and chains of them, achieved per kernel kind, over all runs given."""
    from evo.commands.looking import operators_command

    operators_command(stores, as_json)


@app.command(name="export")
def export_front(
    store: StoreArgument,
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    task: TaskOption = None,
) -> None:
    """Writes the Pareto front of each task as importable kernels."""
    from evo.commands.looking import export_command

    export_command(store, out, task)


@app.command()
def dataset(
    stores: Annotated[list[str], typer.Argument(help="Paths or URLs of population stores.")],
    chosen: Annotated[str, typer.Option("--format", help="sft, preference or grpo.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
) -> None:
    """Makes data to train a model on, of what searches recorded."""
    from evo.commands.dataset import dataset_command

    raise typer.Exit(dataset_command(stores, chosen, out))


@app.command()
def propose(
    store: StoreArgument,
    out: Annotated[
        Path, typer.Option(help="Bundle to write, for `evaluate` on the other machine; compressed if it ends in .gz.")
    ],
    n: Annotated[int, typer.Option("--n", min=1, help="Proposals that shall await evaluation.")] = 64,
    incoming: Annotated[Path | None, typer.Option("--in", help="What `evaluate` wrote; merged first.")] = None,
    config: Annotated[Path | None, typer.Option(help="Begin a run with this YAML file.")] = None,
    evaluations: EvaluationsOption = None,
    wall_s: WallOption = None,
    dollars: DollarsOption = None,
) -> None:
    """Makes proposals and evaluates none: for a machine with a model and without the GPU."""
    from evo.commands.airgap import propose_command
    from evo.commands.search import Overrides

    limits = Overrides(evaluations=evaluations, wall_s=wall_s, dollars=dollars)
    raise typer.Exit(propose_command(store, n, out, incoming, config, limits))


@app.command()
def evaluate(
    store: StoreArgument,
    incoming: Annotated[Path, typer.Option("--in", help="What `propose` wrote; makes the store where there is none.")],
    out: Annotated[Path | None, typer.Option(help="Bundle to write; default: beside the other one, as evaluated-NAME.")] = None,
    address: AddressOption = None,
    evaluations: EvaluationsOption = None,
    wall_s: WallOption = None,
    dollars: DollarsOption = None,
) -> None:
    """Evaluates what `propose` proposed: for a machine with the GPU and without network or key."""
    from evo.commands.airgap import evaluate_command
    from evo.commands.search import Overrides

    limits = Overrides(address, evaluations=evaluations, wall_s=wall_s, dollars=dollars)
    raise typer.Exit(evaluate_command(store, incoming, out, limits))


@app.command()
def merge(
    store: StoreArgument,
    sources: Annotated[list[Path], typer.Argument(help="Bundles and stores of the same run, in any order.")],
) -> None:
    """Appends to a store what bundles and other stores of its run have beyond it."""
    from evo.commands.airgap import merge_command

    raise typer.Exit(merge_command(store, sources))


for command in (trace, tune, rewrite):
    app.command()(command)


@app.command()
def tasks() -> None:
    """Lists the tasks of the package."""
    from evo.commands.looking import tasks_command

    tasks_command()


@app.command()
def doctor(
    task: Annotated[str | None, typer.Option(help="Turn known cheats on this task (a name or path) as well.")] = None,
) -> None:
    """Checks this machine: versions, GPUs, what sandboxes can do, conflicting packages; and whether a cheat would pass a task."""
    check_given(task=task)
    from evo.commands.doctor import doctor_command

    raise typer.Exit(doctor_command(task))


@store_app.command(name="copy")
def store_copy(
    source: StoreArgument,
    target: Annotated[str, typer.Argument(help="Path or URL of the store to create, perhaps of another backend.")],
) -> None:
    """Copies a population store, and compares the two."""
    from evo.commands.storing import copy_command

    copy_command(source, target)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the command `triton-evolve`; always ends by SystemExit.

    Args:
        arguments: Instead of those of the process.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without × or µ is no reason to fail
    try:
        with ended_by_signals() as signalled:
            _run_app(arguments, signalled)
    except TaskErrors as error:
        for each in error.errors[:-1]:
            _tell(each)
        _fail(error.errors[-1], 2)
    except InputError as error:
        _fail(error, 2)
    except TritonEvolveError as error:
        _fail(error, 1)


def _run_app(arguments: Sequence[str] | None, signalled: Callable[[], str | None]) -> None:
    try:
        app(arguments, prog_name="triton-evolve")
    except SystemExit as ended:
        name = signalled()
        if name is not None and ended.code:
            typer.echo(f"triton-evolve: interrupted by {name}", err=True)
            sys.exit(INTERRUPTED)
        raise


def _fail(error: TritonEvolveError, status: int) -> None:
    _tell(error)
    sys.exit(status)


def _tell(error: TritonEvolveError) -> None:
    typer.echo(f"triton-evolve: {' '.join(str(error).split())}", err=True)


if __name__ == "__main__":
    main()
