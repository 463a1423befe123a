"""`triton-evolve dataset`: makes data to train models on, of what searches recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from evo.dataset.columns import Format
from evo.errors import InputError


def dataset_command(stores: Sequence[str], chosen: str, out: Path) -> int:
    """Writes the data set of some stores and says what is in it.

    Returns:
        0.

    Raises:
        InputError: A store, the format or the folder cannot be used, or there is nothing to write.
    """
    if chosen not in list(Format):
        raise InputError("--format", given=chosen, allowed=[item.value for item in Format])
    from evo.dataset.making import make_data_set
    from evo.dataset.writing import check_out, has_parquet, write_data_set

    check_out(out)
    data = make_data_set(stores, Format(chosen))
    for path in write_data_set(data, out):
        typer.echo(path)
    counts = ", ".join(f"{len(rows)} rows of {len(data.tasks[split])} tasks ({split})" for split, rows in data.rows.items())
    typer.echo(counts)
    for why, count in data.left_out.items():
        typer.echo(f"left out: {count} rows: {why}", err=True)
    for name, reason in data.skipped.items():
        typer.echo(f"left out: task {name}: {reason}", err=True)
    if not has_parquet():
        typer.echo('without Parquet: it needs pyarrow; pip install "triton-evolve[data]"', err=True)
    return 0
