"""Builds the README's trust table from the headers of the exploits: ``python -m tests.evo_tests.trust_table [--write]``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.evo_tests.exploits.collection import BEYOND, LAYERS, ROWS, SYSTEM_ROWS, Exploit, exploits

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
FALSE_ALARMS = ROOT / "experiments" / "results" / "false_alarms.json"
"""``{"kernels": N, "false_alarms": n}``: own tasks' starting kernels and all their rewrites; no line in the table while it is missing."""
START, END = "<!-- trust -->", "<!-- /trust -->"
TIERS = ("replayed", "interpreted", "hosted")
TITLES = {"replayed": "replayed (GPU)", "interpreted": "interpreted (no GPU)", "hosted": "hosted (GPU, untraceable wrappers)"}


def table() -> str:
    """The lines between the markers."""
    tiers = [tier for tier in TIERS if any(tier in item.stopped for item in exploits())]
    lines = [
        "| # | how it cheats | exploits | " + " | ".join(TITLES[tier] for tier in tiers) + " |",
        "|---|---|---|" + "---|" * len(tiers),
    ]
    used = set(SYSTEM_ROWS.values())
    for row in [*sorted(set(ROWS) - {BEYOND}), BEYOND]:
        chosen = [item for item in exploits() if item.row == row]
        cells = [[SYSTEM_ROWS[row]]] * len(tiers) if row in SYSTEM_ROWS else [_stopped_by(chosen, tier) for tier in tiers]
        used.update(layer for cell in cells for layer in cell)
        what = ROWS[row] if row != BEYOND else f"{ROWS[row]}: {'; '.join(item.name for item in chosen)}"
        count = str(len(chosen)) if chosen else "a test"
        lines.append(f"| {row or '+'} | {what} | {count} | " + " | ".join(", ".join(cell) or "—" for cell in cells) + " |")
    legend = "; ".join(f"*{layer}*: {text}" for layer, text in LAYERS.items() if layer in used)
    return "\n".join([*_counts(), "", *lines, "", f"What stops them: {legend}."])


def updated(readme: str) -> str:
    """The README's text with the present table.

    Raises:
        ValueError: The markers are missing.
    """
    before, start, rest = readme.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"README.md lacks {START} and {END}")
    return f"{before}{START}\n{table()}\n{END}{after}"


def _counts() -> list[str]:
    fooled = sum(not item.naive.startswith("none") for item in exploits())
    lines = [f"{len(exploits())} exploits, {fooled} of which a naive judge in the kernel's own process lets pass."]
    for tier in TIERS:
        stops = [item.stopped[tier] for item in exploits() if tier in item.stopped]
        flagged = sum(stop.layer == "flagged" for stop in stops)
        harmless = sum(stop.statuses == ("passed",) for stop in stops) - flagged
        if stops:
            rest = f", {flagged} pass, flagged by the verdict's trust level" if flagged else ""
            lines.append(f"{tier.capitalize()}: {len(stops) - flagged - harmless} stopped, {harmless} without effect{rest}.")
    if FALSE_ALARMS.exists():
        counted = json.loads(FALSE_ALARMS.read_text(encoding="utf-8"))
        lines.append(
            f"False alarms: {counted['false_alarms']} of {counted['kernels']} honest kernels (own tasks and their rewrites)."
        )
    return [" ".join(lines)]


def _stopped_by(chosen: list[Exploit], tier: str) -> list[str]:
    return list(dict.fromkeys(item.stopped[tier].layer for item in chosen if tier in item.stopped))


if __name__ == "__main__":
    if "--write" in sys.argv:
        README.write_text(updated(README.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(table())
