"""Exports the Pareto front of a store as importable kernels that launch exactly what was judged, with a test that checks it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import triton

from evo.errors import InputError
from evo.knobs import read_knobs
from evo.reporting.exporting.ancestry import Ancestry
from evo.reporting.exporting.folder import check_free, staged
from evo.reporting.exporting.kernel_text import kernel_text, provenance
from evo.reporting.exporting.launches import record_launches
from evo.reporting.exporting.package import Written, case_configurations, folder_name, reference_text, template, write_package
from evo.reporting.exporting.selection import Member, front_members, load_recorded, recorded_tasks, target_of
from evo.tasks.base import Task
from evo.tracing.workbench import Workbench
from population_store.base import PopulationStore, RunHeader

TEST_FILE = "test_front.py"
MAX_TRACERS = 4
"""Each takes seconds of a core to start, so that a small machine is quickest with one."""


@dataclass(frozen=True)
class ExportedTask:
    """What was written for one task.

    Attributes:
        task: Name.
        folder: An importable package.
        kernels: Paths of the kernel modules, fastest first.
        refused: Variant id → why a member of the front was left out.
    """

    task: str
    folder: Path
    kernels: tuple[Path, ...]
    refused: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class ExportReport:
    """What an export wrote; iterating gives the paths of all kernel modules, then of the test.

    Attributes:
        out: The folder.
        tasks: One per exported task.
        skipped: (Task, why nothing of it was exported).
        test: Path of the test that checks the export.
    """

    out: Path
    tasks: tuple[ExportedTask, ...]
    skipped: tuple[tuple[str, str], ...]
    test: Path

    def __iter__(self) -> Iterator[Path]:
        for task in self.tasks:
            yield from task.kernels
        yield self.test


def export_front(store: PopulationStore, out: Path, *, task: str | None = None) -> ExportReport:
    """Writes the Pareto front (latency, numerical error, peak memory) of each task.

    Every module is traced again as it is written; one whose launch plans differ from what was judged is left out.

    Args:
        store: May be in use by a run.
        out: Missing, empty, or an earlier export, which is replaced.
        task: Only this one.

    Raises:
        InputError: Nothing can be exported, `out` cannot be used, a task file changed, or the run had another version of Triton.
    """
    out = out.expanduser().resolve()
    check_free(out)
    header = store.header
    texts = recorded_tasks(header, task)
    fronts = {name: front_members(store, name) for name in texts}
    skipped = {name: "no variant passed" for name, front in fronts.items() if not front}
    if len(skipped) == len(fronts):
        raise _nothing(header, skipped)
    _check_triton(header)
    tasks = {name: load_recorded(header, name, texts[name]) for name in fronts if name not in skipped}
    exporter = _Exporter(header, Ancestry(store), target_of(header, next(front for front in fronts.values() if front)))
    marker = {"run": header.name, "seed": header.seed, "created": header.created}
    done: list[ExportedTask] = []
    with closing(exporter), staged(out, marker) as stage:
        for name, loaded in tasks.items():
            outcome = exporter.export(stage, out, loaded, fronts[name])
            if isinstance(outcome, str):
                skipped[name] = outcome
            else:
                done.append(outcome)
        if not done:
            raise _nothing(header, skipped)
        (stage / TEST_FILE).write_text(template("test_front.txt"), encoding="utf-8")
    return ExportReport(out, tuple(done), tuple(skipped.items()), out / TEST_FILE)


class _Exporter:
    """Writes tasks of one run; owns the processes that trace exported modules until `close`."""

    def __init__(self, header: RunHeader, ancestry: Ancestry, target: str) -> None:
        self._header = header
        self._ancestry = ancestry
        self._bench = Workbench(target, workers=max(1, min(MAX_TRACERS, (os.cpu_count() or 1) // 2)))

    def export(self, stage: Path, out: Path, task: Task, front: tuple[Member, ...]) -> ExportedTask | str:
        """Writes one task to `stage`, or says why it cannot be exported."""
        if task.form == "module":
            return "kernels in the form of an nn.Module cannot be exported"
        try:
            reference_text(task)  # refused before the work of tracing
        except InputError as error:
            return str(error)
        written: list[Written] = []
        refused: list[tuple[str, str]] = []
        for member in front:
            outcome = self._prepare(task, member, len(written) + 1)
            if isinstance(outcome, str):
                refused.append((member.evaluation.variant_id, outcome))
            else:
                written.append(outcome)
        if not written:
            return f"every kernel of the front was refused; {refused[0][0]}: {refused[0][1]}"
        name = folder_name(task.name)
        write_package(stage / name, task, written, self._header)
        folder = out / name
        return ExportedTask(task.name, folder, tuple(folder / f"{kernel.name}.py" for kernel in written), tuple(refused))

    def close(self) -> None:
        """Ends the processes."""
        self._bench.close()

    def _prepare(self, task: Task, member: Member, rank: int) -> Written | str:
        row, evaluation = member.row, member.evaluation
        tuned = {case.case: case.configuration for case in evaluation.cases}
        missing = [case.name for case in task.training_cases if case.name not in tuned]
        if missing:
            return f"it was not judged on {', '.join(missing)}"
        descent = self._ancestry.descent(row.number)
        comment = provenance(task.name, rank, evaluation, descent, self._header, member.verified)
        text = kernel_text(row.variant.source, comment, tuned)
        knobs = read_knobs(row.variant.source)
        launches = record_launches(self._bench, task, text, evaluation, knobs, case_configurations(task, member))
        if isinstance(launches, str):
            return launches
        return Written(f"kernel_{rank}_{evaluation.variant_id[:8]}", member, text, launches, descent)


def _check_triton(header: RunHeader) -> None:
    """Plans of another version of Triton do not compare, so what was judged could not be recognised."""
    judged = json.loads(header.versions).get("triton")
    if judged is not None and judged != triton.__version__:
        where = f"run {header.name} was judged with triton {judged}"
        raise InputError(where, given=f"triton {triton.__version__}", action="export with the version of the run")


def _nothing(header: RunHeader, skipped: dict[str, str]) -> InputError:
    reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
    return InputError(f"run {header.name}: nothing to export", given=reasons or "no task")
