"""`triton-evolve tune`: tunes one kernel standing alone, shows the best configuration per case, and writes the tuned module."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from evo.commands.bench import device_named
from evo.commands.console import make_console
from evo.commands.given import read_kernel
from evo.commands.tune_store import TuningStore, transferred_hints
from evo.errors import InputError
from evo.evaluation.base import Evaluator, WorkItem
from evo.evaluation.settings import EvaluationSettings
from evo.knobs import Knobs, narrowed, read_knobs
from evo.records import Configuration, Evaluation, LatencyKind, Status, Trial, Variant
from evo.registry import evaluator_factory
from evo.reporting.exporting.kernel_text import tuned_module
from evo.tasks.base import Task
from evo.tasks.loading import load_task
from operators.knobs import expose
from operators.source import NotApplicableError

WIDTH = 160
"""Columns of the table where the output is no terminal: a configuration is not to be cut."""


@dataclass(frozen=True)
class TuneOptions:
    """What the command line says.

    Attributes:
        trials: Configurations timed per group of like cases; None: as many as in a search.
        deep: As many as a search gives its best variants.
        device: ``auto``, ``gpu`` or ``cpu``.
        seed: Of the choice of configurations.
        transfer: Store with trials of another device to start from.
        store: Store that keeps these trials as they come; one that has some of this kernel is gone on with.
        out: File for the tuned module.
    """

    trials: int | None = None
    deep: bool = False
    device: str = "auto"
    seed: int = 0
    transfer: str | None = None
    store: str | None = None
    out: Path | None = None


def tune_command(file: Path, task: str, options: TuneOptions) -> int:
    """Tunes and prints.

    Returns:
        0, or 1 where the kernel does not pass; then it prints why.

    Raises:
        InputError: The file, its knobs, the task, a store or the device cannot be used.
    """
    where = device_named(options.device)
    loaded = load_task(task)
    if options.out is not None and options.out.exists():
        raise InputError(str(options.out), action="exists already: give another name")
    console = make_console()
    source, knobs = with_knobs(file, loaded, console)
    hints = transferred_hints(options.transfer, loaded.name, knobs) if options.transfer else ()
    settings = _settings(options)
    item = WorkItem(0, Variant(loaded.name, source), None, hints=hints)
    with ExitStack() as opened:
        store = opened.enter_context(TuningStore(options.store, loaded, item.variant, settings)) if options.store else None
        evaluator = evaluator_factory("kernels")({loaded.name: loaded}, settings, where)
        opened.callback(evaluator.close)
        verdict = _tuned(evaluator, item, store, console)
    if options.store:
        typer.echo(f"trials: {options.store}")
    return _show(console, file, source, knobs, verdict, options.out)


def _tuned(evaluator: Evaluator, item: WorkItem, store: TuningStore | None, console: Console) -> Evaluation:
    """The verdict; with a store, what it knows is not tried again, and what is found is in it at once."""
    if store is not None:
        item = dataclasses.replace(item, known=store.known(evaluator.device))
        evaluator.listen(lambda _, trials: store.hear(evaluator.device, trials))
        if item.known:
            count = len({trial.configuration for trial in item.known})
            console.print(f"goes on from {count} configurations that were tried before", highlight=False)
    verdict = evaluator.evaluate(item, lambda plan_hash, variant_id: None)
    if store is not None:
        store.finish(verdict)
    return verdict


def _settings(options: TuneOptions) -> EvaluationSettings:
    usual = EvaluationSettings()
    trials = options.trials or (usual.deep_tune_trials if options.deep else usual.tune_trials)
    return dataclasses.replace(usual, start_tune_trials=trials, seed=options.seed)


def with_knobs(file: Path, task: Task, console: Console) -> tuple[str, Knobs]:
    """The module, with every knob that can be found where it declares none.

    Raises:
        InputError: It cannot be read, its knobs contradict each other, or there is nothing to choose from.
    """
    source = read_kernel(file)
    try:
        knobs = read_knobs(source)
        if not knobs.space:
            exposed = expose(source, task.training_cases)
            for line in exposed.found:
                console.print(f"found {line}", highlight=False)
            source, knobs = exposed.source, read_knobs(exposed.source)
    except NotApplicableError as error:
        raise InputError(f"{file}: no knob", action=_one_line(error)) from None
    except ValueError as error:
        raise InputError(f"{file}: its knobs", action=_one_line(error)) from None
    knobs = narrowed(knobs, task.knobs)
    if knobs.size == 1:
        whose = "SPACE" if not task.knobs else f"SPACE, or more values in the knobs of task {task.name}"
        raise InputError(
            f"{file}: its knobs", action=f"there is one configuration alone: give a knob two choices or more in {whose}"
        )
    return source, knobs


def _one_line(error: Exception) -> str:
    """Reasons quote the module, which may break lines anywhere."""
    return " ".join(str(error).split())


def _show(console: Console, file: Path, source: str, knobs: Knobs, verdict: Evaluation, out: Path | None) -> int:
    if verdict.status is not Status.PASSED:
        console.print(f"{verdict.status} at {verdict.stage}: {verdict.message}", style="red", highlight=False)
        return 1
    kind = "" if verdict.latency_kind is LatencyKind.MEASURED else ", not measured"
    console.print(f"{file} on {verdict.device}{kind}: best of {_counted(verdict.trials)}; {knobs.size} in the space")
    if not console.is_terminal:
        console.width = WIDTH
    console.print(_table(verdict, knobs))
    if out is not None:
        per_case = {case.case: case.configuration for case in verdict.cases}
        out.write_text(tuned_module(source, best_overall(verdict), per_case), encoding="utf-8")
        typer.echo(f"tuned module: {out}")
    return 0


def _counted(trials: Sequence[Trial]) -> str:
    """How many configurations, by what became of them on any case."""
    statuses: dict[Configuration, set[Status]] = defaultdict(set)
    for trial in trials:
        statuses[trial.configuration].add(trial.status)
    timed = sum(Status.PASSED in found for found in statuses.values())
    return f"{timed} timed configurations ({len(statuses) - timed} more cannot be run)"


def _table(verdict: Evaluation, knobs: Knobs) -> Table:
    declared = {trial.case: trial.latency_us for trial in verdict.trials if trial.configuration == knobs.default}
    table = Table("case", "declared", "tuned", "gain", "configuration", box=None, header_style="bold", pad_edge=False)
    for case in verdict.cases:
        before = declared.get(case.case)
        shown = "does not fit" if before is None else f"{before:.2f} µs"
        gain = "" if before is None else f"{before / case.latency_us:.2f}×"
        changed = {key: case.configuration[key] for key in knobs.space}
        table.add_row(case.case, shown, f"{case.latency_us:.2f} µs", gain, str(Configuration(changed)))
    return table


def best_overall(verdict: Evaluation) -> Configuration:
    """The configuration with the least geometric mean latency over all cases, of those that ran on each; else that of the first case."""
    latencies: dict[Configuration, dict[str, float]] = defaultdict(dict)
    for trial in verdict.trials:
        if trial.latency_us is not None:
            latencies[trial.configuration][trial.case] = trial.latency_us
    # What was chosen was timed once more, in the best way there is; a configuration that failed the gate was chosen nowhere.
    right = {case.configuration for case in verdict.cases}
    names = {case.case for case in verdict.cases}
    every = {conf: found for conf, found in latencies.items() if conf in right and set(found) == names}
    means = {conf: math.fsum(math.log(latency) for latency in found.values()) for conf, found in every.items()}
    return min(means, key=lambda conf: means[conf]) if means else verdict.cases[0].configuration
