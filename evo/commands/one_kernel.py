"""Arguments of `triton-evolve trace`, `tune` and `rewrite`, which take one kernel standing alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evo.commands.given import check_given
from evo.errors import InputError


def trace(
    file: Annotated[Path, typer.Argument(help="A kernel module.")],
    task: Annotated[str, typer.Option(help="Task name or path of a task file.")],
    target: Annotated[str, typer.Option(help="cuda:80, cuda:90, cuda:100, hip:gfx942 …")] = "cuda:90",
    case: Annotated[str | None, typer.Option(help="Case name; default: the first training case.")] = None,
) -> None:
    """Shows the launch plan of a kernel and what its binaries use, without a GPU."""
    check_given(task=task, kernel=file, target=target)
    from evo.commands.tracing import trace_command

    raise typer.Exit(trace_command(file, task, target, case))


def tune(
    file: Annotated[Path, typer.Argument(help="A kernel module; knobs that it does not declare are found.")],
    task: Annotated[str, typer.Option(help="Task name or path of a task file.")],
    trials: Annotated[int | None, typer.Option(min=1, help="Configurations timed per group of like cases.")] = None,
    deep: Annotated[bool, typer.Option("--deep", help="As many trials as a search gives its best variants.")] = False,
    device: Annotated[str, typer.Option(help="gpu; cpu (modelled latencies); auto: a GPU if there is one.")] = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Of the choice of configurations.")] = 0,
    transfer: Annotated[str | None, typer.Option(help="Store with trials of another device to start from.")] = None,
    store: Annotated[
        str | None, typer.Option(help="Store of these trials, each kept as it comes; one that exists is gone on with.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for the tuned module.")] = None,
) -> None:
    """Tunes one kernel standing alone: finds its knobs, checks it, and shows the best configuration of each case."""
    check_given(task=task, kernel=file)
    from evo.commands.tune import TuneOptions, tune_command

    raise typer.Exit(tune_command(file, task, TuneOptions(trials, deep, device, seed, transfer, store, out)))


def rewrite(
    file: Annotated[Path, typer.Argument(help="A kernel module.")],
    show: Annotated[bool, typer.Option("--list", help="List what applies, the default.")] = False,
    apply: Annotated[str | None, typer.Option(help="Name of a rewrite; prints what it changes as a diff.")] = None,
    site: Annotated[
        int | None, typer.Option(min=1, help="Where to apply it, as the list numbers; default: where it first can.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="List also what does not apply, and why.")] = False,
    target: Annotated[str, typer.Option(help="cuda:80, cuda:90, cuda:100, hip:gfx942 …")] = "cuda:90",
    out: Annotated[Path | None, typer.Option(help="File for the rewritten module.")] = None,
) -> None:
    """Shows which rewrites apply to a kernel, and the diff of one, without a GPU."""
    check_given(kernel=file, target=target)
    from evo.commands.rewriting import RewriteOptions, rewrite_command

    if apply is None and (site is not None or out is not None):
        raise InputError("--site" if site is not None else "--out", action="belongs to --apply NAME")
    if apply is not None and (show or every):
        raise InputError("--list" if show else "--all", action="cannot be given with --apply")
    raise typer.Exit(rewrite_command(file, RewriteOptions(apply, site, every, target, out)))
