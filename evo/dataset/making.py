"""Makes a data set: reads stores, makes rows, leaves out what repeats, leaks or may not be told, and splits the rest by task."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from evo.dataset.answers import START
from evo.dataset.cleaning import has_secret, secrets_here, without_homes
from evo.dataset.columns import Format
from evo.dataset.leaking import Shown, groups_of, tasks_for_test
from evo.dataset.prompts import Questions
from evo.dataset.reading import Run, read_run
from evo.dataset.rows import ROWS, Row, TaskFacts
from evo.errors import InputError
from evo.records import LatencyKind
from evo.reporting.exporting.selection import load_recorded, recorded_tasks
from evo.tasks.base import Task
from evo.tasks.loading import starting_sources
from evo.tasks.names import task_modules

OWN_LICENCE = "Apache-2.0"
"""Of the tasks of the package, and of what is derived from them here."""

UNKNOWN_LICENCE = "LicenseRef-unknown"

FOLDER = "tasks"
"""Of a data set: tasks that are not the package's."""

_SPDX = re.compile(r"SPDX-License-Identifier:\s*(\(?[\w.+-]+\)?(?: (?:OR|AND|WITH) \(?[\w.+-]+\)?)*)")


@dataclass(frozen=True)
class DataSet:
    """What is to be written.

    Attributes:
        format: See `Format`.
        rows: Split → rows.
        tasks: Split → names of tasks.
        files: Name of a task → the task, where its file goes along.
        left_out: Why → how many rows.
        skipped: Name of a task → why nothing of it is there.
        runs: As read.
    """

    format: Format
    rows: Mapping[str, tuple[Mapping[str, Any], ...]]
    tasks: Mapping[str, tuple[str, ...]]
    files: Mapping[str, Task]
    left_out: Mapping[str, int]
    skipped: Mapping[str, str]
    runs: tuple[Run, ...]


def make_data_set(places: Sequence[str], chosen: Format) -> DataSet:
    """The data set of some stores, the same for the same stores.

    Raises:
        StoreError: One cannot be read.
        InputError: There is nothing in them to make it of.
    """
    runs = [read_run(place) for place in places]
    making = _Making(chosen, secrets_here(named={name for run in runs for name in run.key_variables}))
    for run in runs:
        making.add(run)
    return making.made()


class _Making:
    def __init__(self, chosen: Format, secrets: frozenset[str]) -> None:
        self._format = chosen
        self._secrets = secrets
        self._rows: dict[tuple[str, ...], Row] = {}
        self._left: Counter[str] = Counter()
        self._skipped: dict[str, str] = {}
        self._runs: list[Run] = []
        self._loaded: dict[str, tuple[str, Task]] = {}

    def add(self, run: Run) -> None:
        self._runs.append(run)
        for name, text in recorded_tasks(run.header, None).items():
            try:
                task = load_recorded(run.header, name, text)
                if not is_own(task) and has_secret((text, *starting_sources(task)), self._secrets):
                    raise InputError(f"task {name}", action="its files have what looks like a key or password")
                if self._loaded.setdefault(name, (text, task))[0] != text:
                    raise InputError(f"task {name}", action="another store has another task of that name")
            except InputError as error:
                self._skipped[name] = without_homes(" ".join(str(error).split()))
                continue
            facts = _facts(run, task, text)
            for row in ROWS[self._format](run, facts):
                self._take(row)

    def made(self) -> DataSet:
        if not self._rows:
            reasons = [f"{name}: {reason}" for name, reason in self._skipped.items()]
            reasons += [f"{count} rows left out: {why}" for why, count in self._left.items()]
            runs = ", ".join(run.header.name for run in self._runs)
            action = "it needs variants that passed" if self._format is not Format.GRPO else ""
            raise InputError(
                f"run {runs}: no rows for --format {self._format.value}", given="; ".join(reasons) or None, action=action
            )
        rows = tuple(self._rows.values())
        good = _good(self._runs, sorted(self._loaded))
        test = tasks_for_test(groups_of(good.kernels, good.plans))
        shown = Shown(source for task in sorted(test) for source in good.kernels[task])
        parts: dict[str, list[Row]] = {"train": [], "test": []}
        for row in rows:
            if row.task not in test and any(shown.in_text(text) for text in row.texts):
                self._left["it shows a kernel of a task for testing"] += 1
                continue
            parts["test" if row.task in test else "train"].append(row)
        return DataSet(
            self._format,
            {
                split: tuple(_finished(row, split, index) for index, row in enumerate(part))
                for split, part in parts.items()
                if part
            },
            {split: tuple(sorted({row.task for row in part})) for split, part in parts.items() if part},
            {name: task for name, (_, task) in sorted(self._loaded.items()) if not is_own(task)},
            dict(sorted(self._left.items())),
            dict(sorted(self._skipped.items())),
            tuple(self._runs),
        )

    def _take(self, row: Row) -> None:
        if has_secret(_texts(row.values), self._secrets):
            self._left["it has what looks like a key or password"] += 1
        elif row.key in self._rows:
            self._left["another row has a kernel that replays alike"] += 1
            if _kind(row) == LatencyKind.MEASURED != _kind(self._rows[row.key]):
                self._rows[row.key] = row
        else:
            self._rows[row.key] = row


def _kind(row: Row) -> str:
    return str(row.values.get("latency_kind", ""))


def _facts(run: Run, task: Task, text: str) -> TaskFacts:
    own = is_own(task)
    found = _SPDX.search(text)
    licence = found[1] if found else OWN_LICENCE if own else UNKNOWN_LICENCE
    return TaskFacts(
        task.name, task.name if own else f"{FOLDER}/{task.name}/{_file(task).name}", task.kind, licence, bool(task.starting_kernels),
        Questions(task, run.target, run.triton),
    )  # fmt: skip


def is_own(task: Task) -> bool:
    """Whether it is one of the package's, which can be named wherever the package is installed."""
    module = task_modules().get(task.name)
    found = find_spec(module) if module is not None else None
    return found is not None and found.origin is not None and Path(found.origin).resolve() == task.path


def _file(task: Task) -> Path:
    assert task.path is not None, "a loaded task has a file"
    return task.path


@dataclass(frozen=True)
class _Good:
    """Kernels that passed, whatever the format, so that a task is in the same part in each: task → sources, and plan hashes."""

    kernels: Mapping[str, list[str]]
    plans: Mapping[str, set[str]]


def _good(runs: Sequence[Run], tasks: Sequence[str]) -> _Good:
    good = _Good({task: [] for task in tasks}, {task: set() for task in tasks})
    for run in runs:
        for made in run.made.values():
            if made.request.task in good.kernels and (made.passed is not None or made.request.operator == START):
                good.kernels[made.request.task].append(made.source)
                good.plans[made.request.task].update({made.plan_hash} - {""})
    return good


def _finished(row: Row, split: str, index: int) -> Mapping[str, Any]:
    values: dict[str, Any] = _cleaned(dict(row.values))
    if "extra_info" in values:
        values["extra_info"] = {"split": split, "index": index, **values["extra_info"]}
    return values


def _cleaned(value: Any) -> Any:
    """Without names of home folders, and without what UTF-8 cannot say."""
    if isinstance(value, str):
        return without_homes(value).encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")
    if isinstance(value, dict):
        return {key: _cleaned(item) for key, item in value.items()}
    return [_cleaned(item) for item in value] if isinstance(value, list) else value


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
