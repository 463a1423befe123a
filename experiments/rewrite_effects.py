"""Measures what each rewrite does to the starting kernels of the task library and to five kernels of TritonBench-G.

    TRITON_EVOLVE_TRITONBENCH=FOLDER python experiments/rewrite_effects.py --out experiments/results --kept FILE
        [--limit-s S] [--device gpu] [--tasks NAME …] [--cases N] [--most N] [--tune-trials N]

Each task's start, in its declared configuration, is the baseline. Children of each rewrite, one move each, go through the evaluator:
they are checked as every variant is, then timed in pairs with the baseline, interleaved, and each case has a bootstrap interval. Without
``--tune-trials`` children run in their declared configuration too, so what is measured is the move and not the knobs that it adds.

Each outcome is a line of ``--kept`` as soon as it is known, and is not measured again: a run that was stopped, or whose ``--limit-s``
wall seconds were over, goes on. Writes rewrite_effects.json and .md, from which the page of operators is made.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, it has its own folder on the path, not the checkout

from evo.commands.measured import described, measured_with, typed, write_results
from evo.evaluation.base import Baseline, Evaluator, WorkItem
from evo.evaluation.building import build_evaluator
from evo.evaluation.settings import EvaluationSettings
from evo.records import Status, Variant
from evo.registry import find_operators
from evo.tasks.base import Task
from evo.tasks.loading import builtin_tasks, load_task, starting_sources
from experiments.rewrites.foreign_tasks import foreign_tasks
from operators.rewrite.base import Rewrite
from operators.rewriting import offers

NAME = "rewrite_effects"
SIDE_BY_SIDE = 4
"""Tasks at a time: while the last children of one are compiled, others have the device."""


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kept", type=Path, required=True)
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="wall seconds; 0 only writes what is known")
    parser.add_argument("--device", default="gpu", help="gpu, or cpu:cuda:90 for modelled estimates, which reach no page")
    parser.add_argument("--tasks", nargs="*", help="only these; default: all of the library, and the five")
    parser.add_argument("--cases", type=int, default=2, help="training cases of each task")
    parser.add_argument("--most", type=int, default=1, help="children per rewrite and task")
    parser.add_argument("--tune-trials", type=int, default=0, help="of each child; the baseline is tuned as much")
    parser.add_argument("--commit", help="of this project, for copies without their git history")
    given = parser.parse_args(arguments)
    known = [json.loads(line) for line in given.kept.read_text().splitlines()] if given.kept.exists() else []
    if given.limit_s > 0:
        known += Effects(given, known).measured()
    session = measured_with(given.commit, typed(f"python {sys.argv[0]}"))
    results = {"session": session, "device": next((row["device"] for row in known if row["device"]), ""), "rows": rows(known)}
    write_results(given.out, NAME, results, page(session, results["rows"], known))


class Effects:
    """One run over the tasks, until the time is up."""

    def __init__(self, given: argparse.Namespace, known: Sequence[Mapping[str, Any]]) -> None:
        self._given, self._end, self._lock = given, time.monotonic() + given.limit_s, Lock()
        self._done = {(row["task"], row["rewrite"], row["child"]) for row in known}
        self._found: list[dict[str, Any]] = []
        tasks = [load_task(name) for name in given.tasks or builtin_tasks() if not name.startswith("tritonbench_")]
        tasks += [task for task in foreign_tasks() if not given.tasks or task.name in given.tasks]
        self._tasks = [dataclasses.replace(task, training_cases=task.training_cases[: given.cases]) for task in tasks]
        self._rewrites = [cls() for cls in find_operators().values() if issubclass(cls, Rewrite)]

    def measured(self) -> list[dict[str, Any]]:
        """The outcomes that were not known."""
        trials = self._given.tune_trials
        settings = EvaluationSettings(tune_trials=trials, start_tune_trials=trials, deep_tune_trials=0)
        evaluator = build_evaluator({task.name: task for task in self._tasks}, settings, self._given.device)
        try:
            with ThreadPoolExecutor(evaluator.concurrency) as threads, ThreadPoolExecutor(SIDE_BY_SIDE) as at_once:
                list(at_once.map(lambda task: self._task(evaluator, task, threads), self._tasks))
        finally:
            evaluator.close()
        return self._found

    def _children(self, task: Task, source: str, target: str) -> Iterator[tuple[str, str, str]]:
        for rewrite in self._rewrites:
            for offer in offers(rewrite, source, target, self._given.most).children:
                variant = Variant(task.name, offer.source)
                if (task.name, rewrite.name, variant.variant_id) not in self._done:
                    yield rewrite.name, offer.strategy, offer.source

    def _task(self, evaluator: Evaluator, task: Task, threads: ThreadPoolExecutor) -> None:
        for source in starting_sources(task):
            if time.monotonic() > self._end:
                return
            target = "cuda:90" if self._given.device == "gpu" else self._given.device.removeprefix("cpu:")
            children = list(self._children(task, source, target))
            if not children:
                continue
            start = Variant(task.name, source)
            verdict = evaluator.evaluate(WorkItem(0, start, None), _nobody)
            if verdict.status is not Status.PASSED:
                self._keep({"task": task.name, "rewrite": "", "child": start.variant_id, "device": "", "status": verdict.status.value,
                            "message": verdict.message[:300], "cases": []})  # fmt: skip
                continue
            baseline = Baseline(start, {case.case: case.configuration for case in verdict.cases})

            def work(numbered: tuple[int, tuple[str, str, str]], baseline: Baseline = baseline) -> None:
                number, (name, strategy, child) = numbered
                if time.monotonic() > self._end:
                    return
                variant = Variant(task.name, child)
                found = evaluator.evaluate(WorkItem(number, variant, baseline), _nobody)
                cases = [[case.case, case.speedup, case.speedup_low, case.speedup_high, case.pairs] for case in found.cases]
                named = {"task": task.name, "rewrite": name, "strategy": strategy, "child": variant.variant_id}
                self._keep(
                    named
                    | {"device": evaluator.device, "status": found.status.value, "message": found.message[:300], "cases": cases}
                )

            list(threads.map(work, enumerate(children, 1)))

    def _keep(self, row: dict[str, Any]) -> None:
        with self._lock, self._given.kept.open("a") as file:
            file.write(json.dumps(row) + "\n")
            self._found.append(row)


def _nobody(plan_hash: str, variant_id: str) -> None:
    """A claim that always succeeds: nothing is a duplicate."""


def rows(known: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What became of each rewrite's children: where they were faster and slower beyond their intervals, and by how much."""
    found = []
    for name in sorted({row["rewrite"] for row in known} - {""}):
        mine = [row for row in known if row["rewrite"] == name]
        passed = [row for row in mine if row["status"] == Status.PASSED.value]
        cases = [(row["task"], *case) for row in passed for case in row["cases"]]
        ratios = [case[2] for case in cases]
        found.append({
            "rewrite": name,
            "children": len(mine),
            "passed": len(passed),
            "cases": len(cases),
            "faster": sum(case[3] > 1.0 for case in cases),
            "slower": sum(case[4] < 1.0 for case in cases),
            "median": statistics.median(ratios) if ratios else None,
            "best": max(cases, key=lambda case: case[2]) if cases else None,
            "worst": min(cases, key=lambda case: case[2]) if cases else None,
        })  # fmt: skip
    return found


def page(session: Mapping[str, Any], table: Sequence[Mapping[str, Any]], known: Sequence[Mapping[str, Any]]) -> str:
    """The Markdown page."""
    device = next((row["device"] for row in known if row["device"]), "nothing")
    lines = [described(session), "", f"Measured on {device}; speed of children over the starts they were made of, above 1 is faster; "
             "faster and slower count cases whose 95 % interval leaves 1 out.", "",
             "| rewrite | children | passed | cases | faster | slower | median | best | worst |",
             "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for row in table:
        ends = [
            f"{end[2]:.3f} [{end[3]:.3f}, {end[4]:.3f}] ({end[0]} {end[1]})" if end else "–"
            for end in (row["best"], row["worst"])
        ]
        median = "–" if row["median"] is None else f"{row['median']:.3f}"
        counts = [str(row[key]) for key in ("children", "passed", "cases", "faster", "slower")]
        lines.append("| " + " | ".join([row["rewrite"], *counts, median, *ends]) + " |")
    failed = [row for row in known if row["status"] != Status.PASSED.value]
    if failed:
        lines += ["", "What did not pass:", "", "| task | rewrite | status | message |", "|---|---|---|---|"]
        lines += [f"| {row['task']} | {row['rewrite']} | {row['status']} | {_short(row['message'])} |" for row in failed]
    return "\n".join(lines) + "\n"


def _short(message: str) -> str:
    return " ".join(message.split())[:140].replace("|", "/")


if __name__ == "__main__":
    main()
