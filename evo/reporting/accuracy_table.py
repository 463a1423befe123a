"""Accuracy figures of a run as tables for a person, and as plain values for a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evo.reporting.accuracy import Accuracy, AccuracyReport, total

_COUNTS = ("proposals", "no module", "known", "near duplicates", "call acc.", "execution acc.", "faster", "cost")


def render_accuracy(report: AccuracyReport, ks: Sequence[int]) -> RenderableType:
    """For a person."""
    if not report.operators:
        return Text("no proposals yet")
    parts: list[RenderableType] = []
    if report.first:
        parts += [Text("\nproposals of models made of starting kernels or of none (independent of each other)")]
        parts.append(_passing(report, ks))
    if report.later:
        parts += [Text("\nlater proposals of models (they have learned from earlier ones)"), _table("task", report.later)]
    parts += [Text("\nby operator"), _table("operator", report.operators)]
    if report.tiers:
        parts += [Text("\nby model and round (round 1 mends what failed, round 2 what failed again …)"), _tiers(report)]
    return Group(*parts)


def accuracy_json(report: AccuracyReport, ks: Sequence[int]) -> dict[str, Any]:
    """Plain values; pass@k without enough proposals is null."""
    return {
        "pass_at_k": {str(k): report.pass_at(k) for k in ks},
        **{
            name: {
                key: {
                    **accuracy.to_json(),
                    "call_accuracy": accuracy.call_accuracy,
                    "execution_accuracy": accuracy.execution_accuracy,
                }
                for key, accuracy in group.items()
            }
            for name, group in (("first", report.first), ("later", report.later), ("operators", report.operators))
        },
        "tiers": {label: [accuracy.to_json() for accuracy in rounds] for label, rounds in report.tiers.items()},
    }


def _passing(report: AccuracyReport, ks: Sequence[int]) -> Table:
    table = Table("task", *_COUNTS, *(f"pass@{k}" for k in ks), box=None, header_style="bold", pad_edge=False)
    for name, accuracy in report.first.items():
        table.add_row(name, *_cells(accuracy), *(_share(accuracy.pass_at(k)) for k in ks))
    if len(report.first) > 1:
        table.add_row("mean of tasks", *_cells(total(report.first.values())), *(_share(report.pass_at(k)) for k in ks))
    return table


def _tiers(report: AccuracyReport) -> Table:
    names = ("model", "round", "proposals", "valid at once", "valid", "compiled", "correct", "faster", "kept the grammar", "cost")
    table = Table(*names, box=None, header_style="bold", pad_edge=False)
    for label, rounds in report.tiers.items():
        for number, found in enumerate(rounds):
            counts = (found.at_once, found.usable)
            judged = (found.compiled, found.correct, found.faster)
            asked = found.held + found.left
            table.add_row(
                "" if number else label,
                str(number),
                str(found.proposals),
                *(_share(count / found.proposals if found.proposals else None) for count in counts),
                *(_share(count / found.finished if found.finished else None) for count in judged),
                _share(found.held / asked if asked else None),
                f"${found.dollars:.2f}" if found.dollars else "-",
            )
    return table


def _table(first: str, rows: Mapping[str, Accuracy]) -> Table:
    table = Table(first, *_COUNTS, box=None, header_style="bold", pad_edge=False)
    for name, accuracy in rows.items():
        table.add_row(name, *_cells(accuracy))
    return table


def _cells(accuracy: Accuracy) -> tuple[str, ...]:
    return (
        str(accuracy.proposals),
        str(accuracy.proposals - accuracy.usable),
        str(accuracy.repeated),
        str(accuracy.near),
        _share(accuracy.call_accuracy if accuracy.finished else None),
        _share(accuracy.execution_accuracy if accuracy.finished else None),
        _share(accuracy.faster / accuracy.finished if accuracy.finished else None),
        f"${accuracy.dollars:.2f}" if accuracy.dollars else "-",
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
