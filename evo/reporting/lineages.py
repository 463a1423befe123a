"""What traps cost and what the restarts after them gave, for a person."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from evo.search.given_up import Abandoned, Totals


def traps_text(totals: Totals) -> Text:
    """One line."""
    price = f", ${totals.dollars:.2f} spent on them since their last gain" if totals.dollars else ""
    return Text(
        f"given up: {totals.trapped} trapped and {totals.stalled} stalled lineages{price}; "
        f"{totals.better} of {totals.restarts} restarts found something better than what they replaced"
    )


def traps_table(abandoned: Sequence[Abandoned]) -> Table:
    """The newest lineages that were given up, each with the one in its place."""
    columns = ("given up", "why", "proposals", "evaluations", "cost", "best", "restart", "its best", "its cost")
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for item in abandoned:
        reason = " ".join(item.reason.split())
        table.add_row(
            item.lineage,
            Text(f"{item.kind.value}: {reason if len(reason) <= 60 else reason[:59] + '…'}"),
            str(item.figures.proposals),
            str(item.figures.evaluations),
            f"${item.figures.dollars:.2f}",
            f"{item.figures.best:.2f}" if item.figures.best else "-",
            item.successor or "-",
            f"{item.given.best:.2f}" if item.given.best else "-",
            f"${item.given.dollars:.2f}",
        )
    return table
