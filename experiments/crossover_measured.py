"""How many children of the crossover pass the gate, and how many beat both of their parents.

    python experiments/crossover_measured.py --out experiments/results --kept FILE
        [--limit-s S] [--device gpu] [--tasks NAME …] [--cases N] [--parents N] [--children N] [--seed N]

Parents of a task are its start and what single rewrites made of it, up to ``--parents`` that pass, no two of the same rewrite. Of random
ordered pairs of them, up to ``--children`` children each come from the crossover; what has been seen is not evaluated again. Everything is
measured against the start, paired and interleaved. A child beats both parents where the lower end of its 95 % interval is above
both of their speedups. Without a GPU (``--device cpu:cuda:90``) latencies are modelled: then the share that passes is real, the other says
what the model believes.

Each child is a line of ``--kept`` as soon as it is known; a task that is in it is not begun again, so a run that was stopped, or whose
``--limit-s`` wall seconds were over, goes on with the next. Writes crossover_measured.json and .md.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, it has its own folder on the path, not the checkout

from evo.commands.measured import described, measured_with, typed, write_results
from evo.evaluation.base import Baseline, Evaluator, WorkItem
from evo.evaluation.building import build_evaluator
from evo.evaluation.settings import EvaluationSettings
from evo.records import Evaluation, Proposal, Status, Variant
from evo.registry import find_operators
from evo.tasks.base import Task
from evo.tasks.loading import builtin_tasks, load_task, starting_sources
from operators.base import Context, Parent
from operators.crossover import ExchangeParts
from operators.rewrite.base import Rewrite
from operators.rewriting import Offer, offers

NAME = "crossover_measured"
SIDE_BY_SIDE = 4
"""Tasks at a time: while the last children of one are compiled, others have the device."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Made:
    """A parent: its source, what made it, and its verdict."""

    source: str
    strategy: str
    verdict: Evaluation


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kept", type=Path, required=True)
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="wall seconds; 0 only writes what is known")
    parser.add_argument("--device", default="gpu", help="gpu, or cpu:cuda:90 for the interpreted tier")
    parser.add_argument("--tasks", nargs="*", help="only these; default: all of the library")
    parser.add_argument("--cases", type=int, default=2, help="training cases of each task")
    parser.add_argument("--parents", type=int, default=6, help="per task, the start included")
    parser.add_argument("--children", type=int, default=20, help="per task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commit", help="of this project, for copies without their git history")
    given = parser.parse_args(arguments)
    known: list[Row] = [json.loads(line) for line in given.kept.read_text().splitlines()] if given.kept.exists() else []
    if given.limit_s > 0:
        known += measured(given, {row["task"] for row in known})
    session = measured_with(given.commit, typed(f"python {sys.argv[0]}"))
    results = {"session": session, "device": next((row["device"] for row in known), ""), "rows": rows(known), "children": known}
    write_results(given.out, NAME, results, page(session, results["rows"], known))


def measured(given: argparse.Namespace, done: set[str]) -> list[Row]:
    """Children of the tasks that are not done, until the time is up."""
    end = time.monotonic() + given.limit_s
    names = [name for name in given.tasks or builtin_tasks() if name not in done]
    loaded = [load_task(name) for name in names]
    tasks = {task.name: dataclasses.replace(task, training_cases=task.training_cases[: given.cases]) for task in loaded}
    settings = EvaluationSettings(tune_trials=0, start_tune_trials=0, deep_tune_trials=0, seed=given.seed)
    evaluator = build_evaluator(tasks, settings, given.device)
    found: list[Row] = []
    keeping = Lock()

    def work(task: Task, threads: ThreadPoolExecutor) -> None:
        rng = np.random.default_rng([given.seed, *task.name.encode()])
        of_task = children(evaluator, task, given, rng, end, threads)
        with keeping, given.kept.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in of_task)
            found.extend(of_task)

    try:
        with ThreadPoolExecutor(evaluator.concurrency) as threads, ThreadPoolExecutor(SIDE_BY_SIDE) as at_once:
            list(at_once.map(lambda task: work(task, threads), tasks.values()))
    finally:
        evaluator.close()
    return found


def children(
    evaluator: Evaluator, task: Task, given: argparse.Namespace, rng: np.random.Generator, end: float, threads: ThreadPoolExecutor
) -> list[Row]:
    """One row per child of a task, in the order they were made; none where the time is up before all of its parents are known."""
    if time.monotonic() > end:
        return []
    start = starting_sources(task)[0]
    verdict = evaluator.evaluate(WorkItem(0, Variant(task.name, start), None), _nobody)
    if verdict.status is not Status.PASSED:
        return []
    baseline = Baseline(Variant(task.name, start), {case.case: case.configuration for case in verdict.cases})
    target = "cuda:90" if given.device == "gpu" else given.device.removeprefix("cpu:")
    parents = [Made(start, "the start", verdict), *_parents(evaluator, task, baseline, given.parents - 1, target, rng, threads)]
    if time.monotonic() > end:
        return []
    context = Context(task.name, "", task.entry, "", task.operators, target, "")
    wanted: dict[str, tuple[Made, Made, str]] = {}
    seen = {parent.source for parent in parents}
    for _ in range(8 * given.children if len(parents) > 1 else 0):
        first, second = (parents[index] for index in rng.choice(len(parents), 2, replace=False))
        pair = tuple(Parent(Variant(task.name, parent.source)) for parent in (first, second))
        outcome = asyncio.run(ExchangeParts().propose(pair, context, rng))
        if isinstance(outcome, Proposal) and outcome.source not in seen and len(wanted) < given.children:
            wanted[outcome.source] = (first, second, outcome.strategy)
            seen.add(outcome.source)

    def work(numbered: tuple[int, str]) -> Row | None:
        number, source = numbered
        if time.monotonic() > end:
            return None
        first, second, strategy = wanted[source]
        found = evaluator.evaluate(WorkItem(number, Variant(task.name, source), baseline), _nobody)
        passed = found.status is Status.PASSED
        return {
            "task": task.name,
            "device": evaluator.device,
            "strategy": strategy,
            "parents": [first.strategy, second.strategy],
            "parent_speedups": [first.verdict.speedup, second.verdict.speedup],
            "status": found.status.value,
            "message": found.message[:200],
            "speedup": found.speedup if passed else None,
            "speedup_low": found.fitness if passed else None,
        }

    return [row for row in threads.map(work, enumerate(wanted, 1000)) if row is not None]


def _parents(
    evaluator: Evaluator,
    task: Task,
    baseline: Baseline,
    most: int,
    target: str,
    rng: np.random.Generator,
    threads: ThreadPoolExecutor,
) -> list[Made]:
    """Children of different rewrites that pass, in random order; as many at a time as are missing."""
    classes = [cls for cls in find_operators().values() if issubclass(cls, Rewrite)]
    order = [int(index) for index in rng.permutation(len(classes))]
    offered = (
        (index, offer) for index in order for offer in offers(classes[index](), baseline.variant.source, target, 1).children
    )

    def judged(item: tuple[int, Offer]) -> Made | None:
        index, offer = item
        verdict = evaluator.evaluate(WorkItem(1 + index, Variant(task.name, offer.source), baseline), _nobody)
        return Made(offer.source, f"{offer.rewrite}: {offer.strategy}", verdict) if verdict.status is Status.PASSED else None

    found: list[Made] = []
    while len(found) < most and (some := list(itertools.islice(offered, most - len(found)))):
        found += [made for made in threads.map(judged, some) if made is not None]
    return found


def _nobody(plan_hash: str, variant_id: str) -> None:
    """A claim that always succeeds: nothing is a duplicate."""


def beats_both(row: Mapping[str, Any]) -> bool:
    """Whether a child's lower end is above both of its parents' speedups."""
    return row["speedup_low"] is not None and bool(row["speedup_low"] > max(row["parent_speedups"]))


def rows(known: Sequence[Row]) -> list[dict[str, Any]]:
    """Counts per kind of exchange, and over all of them."""
    found = []
    for kind in [*sorted({kind_of(row) for row in known}), "all"]:
        mine = [row for row in known if kind in (kind_of(row), "all")]
        passed = [row for row in mine if row["status"] == Status.PASSED.value]
        better = [row for row in passed if beats_both(row)]
        found.append({"exchange": kind, "tasks": len({row["task"] for row in mine}), "children": len(mine), "passed": len(passed),
                      "beat_both_parents": len(better)})  # fmt: skip
    return found


def kind_of(row: Mapping[str, Any]) -> str:
    """What was exchanged, by the beginning of the strategy: knobs, launch options, tiling, a kernel, a loop …, the entry."""
    strategy = row["strategy"]
    for kind in ("knobs", "launch options", "tiling", "kernel", "loop", "prologue", "epilogue"):
        if strategy.startswith(f"{kind} "):
            return kind
    return "entry" if strategy.endswith("with its kernels") else "statement"


def page(session: Mapping[str, Any], table: Sequence[Mapping[str, Any]], known: Sequence[Row]) -> str:
    """The Markdown page."""
    device = next((row["device"] for row in known), "nothing")
    lines = [described(session), "", f"Evaluated on {device}.", "", "| exchange | tasks | children | passed | beat both parents |",
             "|---|---|---|---|---|"]  # fmt: skip
    for row in table:
        shares = [
            f"{row[key]} ({row[key] / row['children']:.0%})" if row["children"] else "–"
            for key in ("passed", "beat_both_parents")
        ]
        lines.append(f"| {row['exchange']} | {row['tasks']} | {row['children']} | {' | '.join(shares)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
