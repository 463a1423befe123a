"""Builds the fault table of docs/cluster.md from the tests that prove it: ``python -m tests.evo_tests.fault_table [--write]``.

Seconds are limits that the tests assert. Those in brackets were measured by a run of these tests with TRITON_EVOLVE_FAULT_TIMES naming
the file `MEASURED`; there are none where that file is missing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.evo_tests import test_cluster_faults, test_cluster_faults_machines
from tests.evo_tests.faulty_runs import Fault

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "cluster.md"
MEASURED = ROOT / "experiments" / "results" / "cluster_faults.json"
START, END = "<!-- faults: begin -->", "<!-- faults: end -->"


def faults() -> Iterator[Fault]:
    """Those that tests prove, in the order of the tests."""
    for module in (test_cluster_faults, test_cluster_faults_machines):
        for test in vars(module).values():
            if isinstance(found := getattr(test, "fault", None), Fault):
                yield found


def table() -> str:
    """The lines between the markers."""
    measured: dict[str, list[float]] = json.loads(MEASURED.read_text(encoding="utf-8"))["seconds"] if MEASURED.exists() else {}
    lines = ["| what breaks | what happens | the search goes on | within |", "|---|---|---|---|"]
    for fault in faults():
        times = sorted(measured.get(fault.broken, []))
        figures = f" ({'–'.join(f'{time:g}' for time in dict.fromkeys((times[0], times[-1])))} s)" if times else ""
        how = "by `triton-evolve resume`, or the same submit" if fault.resumed else "by itself"
        lines.append(f"| {fault.broken} | {fault.happens} | {how} | {fault.within_s:g} s{figures} |")
    return "\n".join(lines)


def updated(page: str) -> str:
    """The page's text with the present table.

    Raises:
        ValueError: The markers are missing.
    """
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"{PAGE.name} lacks {START} and {END}")
    return f"{before}{START}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(table())
