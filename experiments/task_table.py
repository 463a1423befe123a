"""Measures, in a fresh process, the best variants of stores beside their starting kernels, torch eager, torch.compile and libraries.

    python -m experiments.task_table runs/evolve.sqlite --out experiments/results/h200_tasks
    python -m experiments.task_table runs/*.sqlite --cases 2 --out DIR/all_tasks --limit-s 500      # the same again: goes on

Writes OUT.json (every figure with its interval, and what it was measured with) after each task and OUT.md (the table); tasks that OUT.json
has already are not measured again. How sides are timed stands in `experiments.side_by_side.measuring`. Libraries are those that can be
imported (`experiments.libraries`); what they return is judged on the measured cases as a variant's outputs are. The roofline is the
achievable one: copy bandwidth and fp16 matrix rate measured at the start. The variants' modules run here as Python, as their users run
them; their verdicts come from the store.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from evo.commands.measured import measured_with, queried
from evo.tasks.base import Case, Task
from evo.tasks.loading import load_task
from experiments.libraries import known
from experiments.side_by_side.compiled import compile_ahead
from experiments.side_by_side.measuring import Ceiling, Side, entry_of, measure_case, measure_ceiling
from experiments.side_by_side.page import of_task, summary_line, table
from population_store.base import Ranked
from population_store.opening import open_store


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--task", action="append", help="only these tasks")
    parser.add_argument("--cases", type=int, help="at most so many training cases of each task, first and last ones")
    parser.add_argument(
        "--workers", type=int, default=max(1, len(os.sched_getaffinity(0)) * 3 // 4), help="compile so many at a time"
    )
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="no task is begun after so many seconds")
    parser.add_argument("--commit", help="for checkouts without their git history")
    options = parser.parse_args()
    end = time.monotonic() + options.limit_s
    best, starts, seed = read_stores(options.stores, options.task)
    written = options.out.with_suffix(".json")
    results = json.loads(written.read_text(encoding="utf-8"))["tasks"] if written.exists() else []
    known_tasks = {result["task"] for result in results}
    tasks = {name: load_task(name) for name in best if name not in known_tasks}
    cases = {name: chosen_cases(task, best[name], options.cases) for name, task in tasks.items()}
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(prefix="triton-evolve-compiled-") as folder:
        not_compiled = compile_ahead(
            {n: [case.name for case in some] for n, some in cases.items()}, Path(folder), options.workers
        )
        ceiling = measure_ceiling()
        session: dict[str, Any] = {
            **measured_with(options.commit, ["python", "-m", "experiments.task_table", *sys.argv[1:]]),
            "clocks_mhz": [queried("clocks.sm"), queried("clocks.mem")],
            "libraries": known.versions(),
            "ceiling": vars(ceiling),
            "seed": seed,
        }
        for name, task in tasks.items():
            if time.monotonic() > end:
                break
            started = time.monotonic()
            results.append(measure_task(task, cases[name], best[name], starts[name], ceiling, not_compiled))
            print(summary_line(results[-1]), f"({time.monotonic() - started:.0f} s)", flush=True)
            written.parent.mkdir(parents=True, exist_ok=True)
            written.write_text(json.dumps({"session": session, "tasks": results}, indent=1), encoding="utf-8")
            options.out.with_suffix(".md").write_text(table(session, results), encoding="utf-8")


def read_stores(stores: Sequence[str], only: Sequence[str] | None) -> tuple[dict[str, Ranked], dict[str, Ranked], int]:
    """Task → its best variant and its fastest starting kernel, which speedups are against; and the seed of the first run."""
    best: dict[str, Ranked] = {}
    starts: dict[str, Ranked] = {}
    seed = None
    for place in stores:
        with open_store(place) as store:
            seed = store.header.seed if seed is None else seed
            for name in json.loads(store.header.tasks):
                rows = store.ranking(name) if not only or name in only else ()
                if rows:
                    best[name] = rows[0]
                    starts[name] = min((r for r in rows if r.request.operator == "start"), key=lambda row: row.search.latency_us)
    return best, starts, seed or 0


def chosen_cases(task: Task, best: Ranked, most: int | None) -> list[Case]:
    """Training cases that the variant was scored on, evenly over their order where they are too many."""
    names = [result.case for result in (best.verify or best.search).cases]
    if most is not None and most < len(names):
        names = [names[round(place * (len(names) - 1) / max(most - 1, 1))] for place in range(most)]
    return [task.case(name) for name in names]


def measure_task(
    task: Task, cases: Sequence[Case], best: Ranked, start: Ranked, ceiling: Ceiling, not_compiled: Mapping[str, str]
) -> dict[str, Any]:
    """The chosen cases of one task."""
    judged = best.verify or best.search
    configurations = {result.case: result.configuration for result in judged.cases}
    declared = {result.case: result.configuration for result in start.search.cases}
    libraries = known.calls_for(task.name)
    wrong: dict[str, list[str]] = {name: [] for name in libraries}
    measured = []
    for case in cases:
        reason = not_compiled.get(f"{task.name} {case.name}", "")
        sides: dict[str, Side] = {
            "start": entry_of(task, start.variant.source, declared[case.name]),
            "best": entry_of(task, best.variant.source, configurations[case.name]),
            "eager": task.reference,
            **({} if reason else {"compiled": torch.compile(task.reference, dynamic=False)}),
            **libraries,
        }
        for name, call in libraries.items():
            wrong[name].append(known.why_not(task, case, call, "cuda"))
        found = measure_case(task, case, sides, "best")
        if reason:
            found["failed"]["compiled"] = reason
        share = ceiling.floor_us(case) / found["device_us"]["best"]
        measured.append({"case": case.name, "configuration": dict(configurations[case.name]), **found, "roofline_share": share})
        torch._dynamo.reset()
    return {
        "task": task.name,
        "variant": best.variant.variant_id,
        "strategy": best.strategy,
        "operator": best.request.operator,
        "verified": best.verify is not None,
        "noise_floor": judged.noise_floor,
        "store_speedup_low": judged.fitness,
        "cases": measured,
        **of_task(measured, wrong),
    }


if __name__ == "__main__":
    main()
