"""Writes a data set to a folder: JSON Lines and, where pyarrow is installed, Parquet per split, task files, and the data card."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo.dataset.card import card_of
from evo.dataset.columns import COLUMNS, Column, Kind
from evo.dataset.making import FOLDER, DataSet
from evo.errors import InputError, TaskError
from evo.reporting.exporting.folder import check_free, staged
from evo.tasks.base import Task
from evo.tasks.loading import load_task

if TYPE_CHECKING:
    import pyarrow as pa

MARKER = "dataset.json"
CARD = "README.md"


def has_parquet() -> bool:
    """Whether Parquet can be written here."""
    return find_spec("pyarrow") is not None


def check_out(out: Path) -> None:
    """Checks that a data set may be put there.

    Raises:
        InputError: Something stands there that is none.
    """
    check_free(out, MARKER)


def write_data_set(data: DataSet, out: Path) -> tuple[Path, ...]:
    """Writes the folder as a whole.

    Args:
        data: See `DataSet`.
        out: Missing, empty, or an earlier data set, which is replaced.

    Returns:
        The files of rows and the card.

    Raises:
        InputError: `out` cannot be written, or a task's file cannot go along.
    """
    out = out.expanduser().resolve()
    columns = COLUMNS[data.format]
    written = []
    with staged(out, {"format": data.format.value, "runs": [run.header.name for run in data.runs]}, MARKER) as stage:
        for split, rows in data.rows.items():
            lines = [json.dumps({name: row[name] for name in columns}, ensure_ascii=False) + "\n" for row in rows]
            (stage / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8", newline="\n")
            written.append(f"{split}.jsonl")
            if has_parquet():
                _write_parquet(stage / f"{split}.parquet", columns, rows)
                written.append(f"{split}.parquet")
        for name, task in data.files.items():
            _write_task(stage / FOLDER / name, task)
        (stage / CARD).write_text(card_of(data, parquet=has_parquet()), encoding="utf-8")
    return tuple(out / name for name in (*written, CARD))


def _write_task(folder: Path, task: Task) -> None:
    """The task's file and its starting kernels; loaded from there once, since it may need what does not go along."""
    assert task.path is not None, "a loaded task has a file"
    folder.mkdir(parents=True)
    (folder / task.path.name).write_bytes(task.path.read_bytes())
    for item in task.starting_kernels:
        if "\n" in item:
            continue
        source, target = task.path.parent / item, folder / item
        if not target.resolve().is_relative_to(folder.resolve()):
            raise InputError(
                f"task {task.name}: {item}", action="its starting kernel cannot go along: keep it beside the task file"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    try:
        load_task(str(folder / task.path.name))
    except TaskError as error:
        raise InputError(f"task {task.name}", action=f"its file cannot go along, it needs what is elsewhere: {error}") from error


def _write_parquet(path: Path, columns: Mapping[str, Column], rows: Sequence[Mapping[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, _type(column.kind)) for name, column in columns.items()])
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=schema), path)


def _type(kind: Kind) -> pa.DataType:
    import pyarrow as pa

    text, texts = pa.string(), pa.list_(pa.string())
    if kind is Kind.CASES:
        numbers = ("latency_us", "baseline_us", "speedup", "speedup_low", "speedup_high", "error_ratio")
        fields = [("case", text), ("configuration", text), *((name, pa.float64()) for name in numbers), ("pairs", pa.int64())]
        return pa.list_(pa.struct(fields))
    if kind is Kind.EXTRA:
        return pa.struct([("split", text), ("index", pa.int64()), ("baseline", text), ("shown", texts), ("shown_plans", texts)])
    return {
        Kind.TEXT: text,
        Kind.TEXTS: texts,
        Kind.NUMBER: pa.float64(),
        Kind.MESSAGES: pa.list_(pa.struct([("role", text), ("content", text)])),
        Kind.REWARD_MODEL: pa.struct([("style", text), ("ground_truth", text)]),
    }[kind]
