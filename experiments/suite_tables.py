"""Writes the README's tables of public suites from committed results, and counts how far whole suites can be taken without a GPU.

python -m experiments.suite_tables                                   # the README's section, from experiments/results/suites/*.json
python -m experiments.suite_tables --prepared runs/bench/rocm …      # first counts anew what `bench SUITE --only prepare` left there
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evo.commands.measured import described, measured_with
from evo.suites.jobs import ABOUT, PROBLEMS
from evo.suites.preparing import read_ready
from evo.suites.registry import find_suite
from evo.suites.results import readme_section

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "experiments" / "results" / "suites"
PREPARED = "prepared"
BEGIN, END = "<!-- suites -->\n", "<!-- /suites -->"
STATES = {
    "ready": "ready, checked by the interpreter",
    "gpu": "ready, to be checked on a GPU",
    "unstarted": "read and checked, starting kernel not made yet",
    "started": "no starting kernel",
    "checked": "its reference fails on inputs drawn anew",
    "read": "cannot be a task",
    "left": "not looked at",
}
"""How far a problem came, best first."""


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prepared", type=Path, nargs="+", default=[], help="folders of runs")
    parser.add_argument("--commit")
    options = parser.parse_args()
    if options.prepared:
        session = measured_with(options.commit, ["triton-evolve bench SUITE --suite-root CHECKOUT --only prepare"])
        path = RESULTS / f"{PREPARED}.json"
        known = json.loads(path.read_text(encoding="utf-8"))["suites"] if path.exists() else []
        counted = {"suites": merged(known, [{"session": session, **counts_of(folder)} for folder in options.prepared])}
        RESULTS.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(counted, indent=1) + "\n", encoding="utf-8")
        (RESULTS / f"{PREPARED}.md").write_text(prepared_page(counted), encoding="utf-8")
    readme = ROOT / "README.md"
    readme.write_text(with_section(readme.read_text(encoding="utf-8"), section()), encoding="utf-8")


def merged(known: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Suites that were counted before, those that were counted anew in their place, and others after them."""
    again = {suite["suite"]: suite for suite in new}
    before = [again.pop(suite["suite"], suite) for suite in known]
    return [*before, *again.values()]


def counts_of(folder: Path) -> dict[str, Any]:
    """How far the problems of a run's folder came, each with why it came no further."""
    suite = find_suite(json.loads((folder / ABOUT).read_text(encoding="utf-8"))["suite"])
    rows = []
    for problem in suite.problems((folder / "checkout").resolve()):
        ready = read_ready(folder / PROBLEMS / problem.name)
        if ready is None:
            rows.append({"problem": problem.title, "state": "left", "why": "", "notes": []})
            continue
        state = "gpu" if ready.stage == "ready" and ready.gpu_only else ready.stage
        state = "unstarted" if ready.stage == "started" and not ready.reason else state
        rows.append({"problem": problem.title, "state": state, "why": ready.reason or ready.gpu_only, "notes": list(ready.notes)})
    counts = Counter(row["state"] for row in rows)
    return {"suite": suite.name, "title": suite.title, "target": suite.target or "cuda:90", "counts": dict(counts), "rows": rows}


def prepared_page(counted: Mapping[str, Any]) -> str:
    """Markdown: counts by suite, and a line for every problem that is not ready."""
    lines = [
        "# Whole suites, without a GPU",
        "",
        "How far each problem comes: read from the checkout, its scripts' calls recorded, traced for the target, its reference run on "
        "inputs drawn anew, a starting kernel made. Nothing was searched or timed.",
        "",
        *_counts(counted["suites"]),
        "",
    ]
    for suite in counted["suites"]:
        missed = [row for row in suite["rows"] if row["state"] not in ("ready", "unstarted", "left")]
        lines += [f"## {suite['title']}", "", described(suite["session"]), "", "| problem | state | why |", "|---|---|---|"]
        lines += [f"| {row['problem']} | {STATES[row['state']]} | {_cell(row['why'])} |" for row in missed]
        left = [row["problem"] for row in suite["rows"] if row["state"] == "left"]
        lines += ["", *([f"Not looked at: {', '.join(left)}.", ""] if left else [])]
    return "\n".join(lines)


def _counts(suites: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        f"| suite | target | Triton | problems | {' | '.join(STATES.values())} |",
        f"|---|---|---|---|{'---|' * len(STATES)}",
    ]
    for suite in suites:
        cells = [str(suite["counts"].get(state, 0)) for state in STATES]
        triton = suite["session"]["triton"]
        lines.append(f"| {suite['title']} | {suite['target']} | {triton} | {len(suite['rows'])} | {' | '.join(cells)} |")
    return lines


def _cell(text: str, limit: int = 300) -> str:
    line = " ".join(text.split()).replace("|", "\\|")
    return line if len(line) <= limit else line[: limit - 1] + "…"


def section() -> str:
    """What the README says, from the committed results."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json")) if path.stem != PREPARED]
    text = readme_section(runs, {item["suite"]: item["session"]["command"] for item in runs}) if runs else ""
    path = RESULTS / f"{PREPARED}.json"
    if path.exists():
        counted = json.loads(path.read_text(encoding="utf-8"))
        where = f"experiments/results/suites/{PREPARED}.md"
        text += f"How far whole suites come without a GPU, every refusal with its reason in [the table]({where}):\n\n"
        text += "\n".join(_counts(counted["suites"])) + "\n\n    " + counted["suites"][0]["session"]["command"] + "\n"
    return text


def with_section(readme: str, text: str) -> str:
    """The README with another section of suites."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{text}{END}{after}"


if __name__ == "__main__":
    main()
