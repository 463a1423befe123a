"""The commands that look at stores and tasks: `status`, `report`, `operators`, `export`, `tasks`."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.live import Live
from rich.table import Table

from evo.commands.console import make_console
from evo.errors import InputError
from population_store.opening import open_store


def status_command(store: str, watch_s: float | None, top: int) -> None:
    """Shows a run once, or again every `watch_s` seconds.

    Raises:
        StoreError: There is no such store, or it is of a newer version.
    """
    from evo.reporting.status import StatusReader, render_status

    console = make_console()
    with open_store(store) as opened:
        reader = StatusReader(opened)
        if watch_s is None:
            console.print(render_status(reader.look(top)))
            return
        try:
            with Live(render_status(reader.look(top)), console=console, auto_refresh=False) as live:
                while True:
                    time.sleep(watch_s)
                    live.update(render_status(reader.look(top)), refresh=True)
        except KeyboardInterrupt:
            return  # the way to end a watch


def report_command(store: str, ks: str, as_json: bool) -> None:
    """Shows how accurate proposals were.

    Raises:
        StoreError: There is no such store, or it is of a newer version.
        InputError: `ks` is no list of whole numbers.
    """
    from evo.reporting.accuracy import read_accuracy
    from evo.reporting.accuracy_table import accuracy_json, render_accuracy

    wanted = [part.strip() for part in ks.split(",") if part.strip()]
    if not wanted or not all(part.isascii() and part.isdigit() and 0 < int(part) < 10**6 for part in wanted):
        raise InputError("--k", given=ks, allowed="whole numbers from 1, separated by commas")
    numbers = sorted({int(part) for part in wanted})
    with open_store(store) as opened:
        report = read_accuracy(opened)
    if as_json:
        typer.echo(json.dumps(accuracy_json(report, numbers), indent=2))
    else:
        make_console().print(render_accuracy(report, numbers))


def operators_command(stores: Sequence[str], as_json: bool) -> None:
    """Shows what operators and chains achieved in the runs of some stores together.

    Raises:
        StoreError: There is no such store, or it is of a newer version.
    """
    from evo.reporting.operators import operators_json, render_operators
    from evo.search.earlier import read_figures

    with contextlib.ExitStack() as opened:
        found = read_figures([opened.enter_context(open_store(store)) for store in stores])
    if as_json:
        typer.echo(json.dumps(operators_json(found), indent=2))
    else:
        make_console().print(render_operators(found))


def export_command(store: str, out: Path, task: str | None) -> None:
    """Writes the Pareto front of one task or of all.

    Raises:
        InputError: The store cannot be used, or has no such task.
    """
    with open_store(store) as opened:
        from evo.reporting.export import export_front  # imports torch and Triton, for which no mistake is to wait

        report = export_front(opened, out, task=task)
    for path in report:
        typer.echo(path)
    for exported in report.tasks:
        for variant_id, reason in exported.refused:
            typer.echo(f"left out: {exported.task} {variant_id}: {reason}", err=True)
    for name, reason in report.skipped:
        typer.echo(f"left out: {name}: {reason}", err=True)


def tasks_command() -> None:
    """Lists the tasks of the package by kind, a line each: what their modules say of them."""
    import importlib

    from evo.tasks.names import task_modules

    modules = {name: importlib.import_module(module) for name, module in task_modules().items()}
    kinds = {name: str(module.TASK.kind) for name, module in modules.items()}
    table = Table("kind", "task", "cases", "what it computes", box=None, header_style="bold", pad_edge=False)
    table.columns[-1].no_wrap = True
    shown = ""
    for name in sorted(modules, key=lambda name: (kinds[name], name)):
        task, summary = modules[name].TASK, (modules[name].__doc__ or "").strip().splitlines()[0]
        cases = f"{len(task.training_cases)} + {len(task.held_out_cases)}"
        table.add_row("" if kinds[name] == shown else kinds[name], name, cases, summary)
        shown = kinds[name]
    make_console().print(table)
    typer.echo(f"{len(modules)} tasks; cases are training + held out. `triton-evolve doctor --task NAME` tells more of one.")
