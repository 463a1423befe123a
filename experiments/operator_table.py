"""What each operator did in a search: how often it applied and passed, and its children's speed over their parents'.

    python experiments/operator_table.py runs/evolve.sqlite --out experiments/results/h200_operators

Reads a population store and writes OUT.json and OUT.md. A child's speed over its parent's is the ratio of their speedups against the same
frozen baseline, each from timed pairs. It includes what tuning made of the child's configurations: the effect of the move as
the search sees it. The largest of many ratios is biased upward by noise, so medians come first.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from evo.records import Evaluation, Proposal, Request, Status
from population_store.base import EvaluationEntry, OutcomeEntry, PopulationStore, Purpose
from population_store.opening import open_store


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with open_store(options.store) as store:
        rows = operator_rows(store)
        versions = json.loads(store.header.versions)
        devices = sorted({row["device"] for row in rows})
    session = {
        "command": f"python experiments/operator_table.py STORE --out {options.out}",
        "versions": versions,
        "devices": devices,
    }
    options.out.with_suffix(".json").write_text(json.dumps({"session": session, "rows": rows}, indent=1))
    options.out.with_suffix(".md").write_text(table(session, rows))


def operator_rows(store: PopulationStore) -> list[dict[str, Any]]:
    """One row per operator and task."""
    requests: dict[int, Request] = {}
    verdicts: dict[str, Evaluation] = {}
    proposed: Counter[tuple[str, str]] = Counter()
    passed: dict[tuple[str, str], list[Evaluation]] = defaultdict(list)
    outcomes: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _, entry in store.journal():
        if isinstance(entry, Request):
            requests[entry.number] = entry
        elif isinstance(entry, OutcomeEntry):
            request = requests[entry.number]
            proposed[request.operator, request.task] += isinstance(entry.outcome, Proposal)
        elif isinstance(entry, EvaluationEntry) and entry.purpose is Purpose.SEARCH:
            request, verdict = requests[entry.number], entry.evaluation
            key = (request.operator, request.task)
            outcomes[key][verdict.status.value] += 1
            verdicts.setdefault(verdict.variant_id, verdict)
            parent = verdicts.get(request.parents[0]) if request.parents else None
            if verdict.status is Status.PASSED:
                passed[key].append(verdict)
                if parent is not None and parent.status is Status.PASSED:
                    ratios[key].append(verdict.speedup / parent.speedup)
    return [
        {
            "operator": operator,
            "task": task,
            "device": passed[operator, task][0].device if passed[operator, task] else "",
            "proposed": proposed[operator, task],
            "verdicts": dict(counted),
            "ratios": sorted(ratios[operator, task]),
        }
        for (operator, task), counted in sorted(outcomes.items())
        if operator != "start"
    ]


def table(session: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Markdown, one row per operator and task."""
    named = ", ".join(f"{key} {value}" for key, value in sorted(session["versions"].items()))
    lines = [
        f"{' / '.join(device for device in session['devices'] if device)}; {named}. `{session['command']}`",
        "",
        "Speed of children over their parents (speedups against one baseline), by operator and task.",
        "",
        "| operator | task | evaluated | passed | median | best | worst |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ratios = row["ratios"]
        figures = [f"{value:.3f}" for value in (statistics.median(ratios), max(ratios), min(ratios))] if ratios else ["–"] * 3
        counts = [str(sum(row["verdicts"].values())), str(row["verdicts"].get("passed", 0))]
        lines.append("| " + " | ".join([row["operator"], row["task"], *counts, *figures]) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
