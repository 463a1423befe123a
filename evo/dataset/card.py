"""The data card: what a data set holds, where it is from, whose it is, how it was judged, and what to beware of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from evo.dataset.columns import COLUMNS, Format
from evo.dataset.making import UNKNOWN_LICENCE, DataSet

_TITLES = {
    Format.SFT: "Triton kernels as answers (supervised fine-tuning)",
    Format.PREFERENCE: "Triton kernels, the better and the worse (preference)",
    Format.GRPO: "Questions about Triton kernels, to be answered and rewarded (GRPO)",
}
_COUNTED = ("ask", "origin", "model", "latency_kind", "trust", "device", "licence")


def card_of(data: DataSet, *, parquet: bool) -> str:
    """The card as Markdown, with the head that Hugging Face's `datasets` reads.

    Args:
        data: See `DataSet`.
        parquet: Whether there are Parquet files.
    """
    every = [row for rows in data.rows.values() for row in rows]
    parts = [
        _head(data, every, parquet),
        f"# {_TITLES[data.format]}\n",
        "Made by `triton-evolve dataset` from what searches for Triton kernels recorded. Each module was judged by a search's "
        "evaluator: traced in a sandbox, checked against a float64 oracle, and compared with the tuned starting kernel.\n",
        "## Splits\n\nBy task: tasks that share kernels, or near copies of some, are in one split, and no prompt for training shows "
        "a kernel of a task for testing.\n",
        _table(
            ("split", "rows", "tasks"), ((split, len(rows), ", ".join(data.tasks[split])) for split, rows in data.rows.items())
        ),
        "## What is in it\n",
        _table(("column", "value", "rows"), _counts(every)),
        _left_out(data),
        "## Where it is from\n",
        _table(
            ("run", "seed", "created", "target", "triton"), sorted({_run_row(data, index) for index in range(len(data.runs))})
        ),
        _beware(every),
        "## Columns\n",
        _table(
            ("column", "type", "meaning"),
            ((f"`{name}`", column.kind.value, column.meaning) for name, column in COLUMNS[data.format].items()),
        ),
    ]
    return "\n".join(part for part in parts if part)


def _head(data: DataSet, rows: Iterable[Mapping[str, Any]], parquet: bool) -> str:
    licences = sorted({row["licence"] for row in rows})
    only = licences[0].lower() if len(licences) == 1 and licences[0] != UNKNOWN_LICENCE else "other"
    ending = "parquet" if parquet else "jsonl"
    lines = ["---", f"license: {only}", "configs:", "- config_name: default", "  data_files:"]
    for split in data.rows:
        lines += [f"  - split: {split}", f"    path: {split}.{ending}"]
    return "\n".join([*lines, "tags: [triton, gpu, code]", "---", ""])


def _counts(rows: Iterable[Mapping[str, Any]]) -> Iterable[tuple[object, ...]]:
    for column in _COUNTED:
        counted = Counter(row[column] for row in rows if row.get(column))
        yield from ((f"`{column}`", value, counted[value]) for value in sorted(counted))


def _left_out(data: DataSet) -> str:
    lines = [f"* {count} rows: {why}." for why, count in data.left_out.items()]
    lines += [f"* Task {name}: {reason}." for name, reason in data.skipped.items()]
    return "\n".join(["## Left out\n", *lines, ""]) if lines else ""


def _run_row(data: DataSet, index: int) -> tuple[object, ...]:
    run = data.runs[index]
    return run.header.name, run.header.seed, run.header.created, run.target, run.triton or "not recorded"


def _beware(rows: Iterable[Mapping[str, Any]]) -> str:
    lines = ["## Beware\n"]
    rows = list(rows)
    if any(row.get("latency_kind") == "modelled" for row in rows):
        lines.append(
            "* Rows with `latency_kind` modelled were ordered by an **estimate, not a measurement**; leave them out where speed is "
            "to be learned."
        )
    if any(row.get("model") for row in rows):
        lines.append(
            "* Rows with a `model` hold text of that language model. Its provider's terms may forbid training others on it."
        )
    if any(row["licence"] == UNKNOWN_LICENCE for row in rows):
        lines.append(
            f"* Rows with licence {UNKNOWN_LICENCE} are of a task file that names none (`SPDX-License-Identifier`): ask its owner."
        )
    lines.append("* Texts of kernels, replies and messages were written by others: data, never instructions.")
    lines.append(
        "* Keys and passwords are looked for by their shape and by this machine's environment; rows with one are not here."
    )
    return "\n".join([*lines, ""])


def _table(names: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    names = tuple(names)
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    lines += [f"| {' | '.join(_cell(item) for item in row)} |" for row in rows]
    return "\n".join([*lines, ""])


def _cell(value: object) -> str:
    return " ".join(str(value).replace("|", "\\|").split())
