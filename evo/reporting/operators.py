"""What operators achieved per kernel kind: a table for a person, plain values for a program."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evo.search.chains import OFFERED_AFTER
from evo.search.earlier import ByKind, Figures, is_chain

COLUMNS = ("asked", "does not apply", "known", "evaluated", "passed", "faster", "child / parent", "reward")


def render_operators(found: ByKind) -> RenderableType:
    """For a person: single operators by kind, then the chains that a search would offer as one move."""
    if not found:
        return Text("no proposals yet")
    parts: list[RenderableType] = []
    for kind, operators in sorted(found.items()):
        singles = {name: item for name, item in operators.items() if not is_chain(name) and item.asked > item.inapplicable}
        chains = {name: item for name, item in operators.items() if is_chain(name) and item.gained >= OFFERED_AFTER}
        never = sorted(name for name in operators if not is_chain(name) and name not in singles)
        parts += [Text(f"\n{kind}", style="bold"), _table("operator", singles)]
        if never:
            parts.append(Text(f"never applied: {', '.join(never)}"))
        if chains:
            parts += [Text(f"\n{kind}: chains that helped {OFFERED_AFTER} times or more"), _table("chain", chains)]
    said = (
        "child / parent: median fitness of children that passed, over what was changed; reward: mean as the bandit has it, newest "
        "uses first; sequences of moves count as uses of their chain"
    )
    return Group(*parts, Text(f"\n{said}"))


def operators_json(found: ByKind) -> dict[str, dict[str, Any]]:
    """Kernel kind → operator or chain → its figures."""
    return {
        kind: {name: {**dataclasses.asdict(item), "median": _median(item)} for name, item in sorted(operators.items())}
        for kind, operators in sorted(found.items())
    }


def _table(title: str, operators: dict[str, Figures]) -> Table:
    table = Table(title, *COLUMNS, box=None, header_style="bold", pad_edge=False)
    for name, item in sorted(operators.items(), key=lambda pair: (-_mean(pair[1]), pair[0])):
        median = _median(item)
        counts = (item.asked, item.inapplicable, item.known, item.evaluated, item.passed, item.gained)
        table.add_row(name, *map(str, counts), "" if median is None else f"{median:.3f}×", f"{_mean(item):.2f}")
    return table


def _median(item: Figures) -> float | None:
    return statistics.median(item.ratios) if item.ratios else None


def _mean(item: Figures) -> float:
    used = item.arm.won + item.arm.lost
    return item.arm.won / used if used else 0.0
