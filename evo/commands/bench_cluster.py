"""`triton-evolve bench cluster`: what a run costs besides its evaluations, and how that grows with the number of evaluators."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from evo.commands.console import make_console
from evo.commands.measured import described, measured_with, typed, write_results
from evo.config import ClusterSection
from evo.evaluation.simulated_device import H200, DeviceRecord
from evo.records import Request
from population_store.base import EvaluationEntry, OutcomeEntry, PopulationStore, RunHeader
from population_store.opening import open_store

NAME = "bench_cluster"
FEW = 10
"""Evaluators of the run that the other one is compared with."""
LOOK_S = 0.5
"""Time between two looks of the driver."""
WARM = 2
"""Batches per evaluator before the window begins, so that their starts are spread."""


def bench_cluster_command(evaluators: int, rate: float, seconds: float, seed: int, out: Path | None, commit: str | None) -> int:
    """Runs the benchmark and prints it.

    Args:
        evaluators: How many; a run with `FEW` at the same rate comes first.
        rate: Evaluations per second that they could make together.
        seconds: Of the window, after warm-up.
        seed: Of the search and the verdicts.
        out: Folder for the results, None writes none.
        commit: See `measured_with`.
    """
    from evo.cluster.session import ray_session

    console = make_console()
    runs = []
    with ray_session(ClusterSection()):
        for count in dict.fromkeys((min(FEW, evaluators), evaluators)):
            console.print(f"{count} simulated evaluators, up to {rate:g} evaluations per second …")
            runs.append(measure(count, rate, seconds, seed))
    results = {
        "session": measured_with(commit, typed("triton-evolve")),
        "record": {"device": H200.name, "origin": H200.origin},
        "rate": rate,
        "seed": seed,
        "runs": runs,
    }
    if out is not None:
        write_results(out, NAME, results, page(results))
    table = Table("what", *(f"{run['evaluators']} evaluators" for run in runs), box=None, header_style="bold", pad_edge=False)
    for name, *figures in rows(runs):
        table.add_row(name, *figures)
    console.print(table)
    return 0


def measure(evaluators: int, rate: float, seconds: float, seed: int, record: DeviceRecord = H200) -> dict[str, Any]:
    """Figures of one run, on the Ray that is connected, in a store that is deleted."""
    from evo.cluster.simulating import BATCH, simulated_cluster

    pace = rate * record.mean_s / evaluators
    header = RunHeader("bench-cluster", seed, "{}", '{"toy": ""}', "{}", datetime.now(UTC).isoformat(timespec="seconds"))
    with tempfile.TemporaryDirectory(prefix="triton-evolve-bench-") as folder:
        store = str(Path(folder) / "bench.sqlite")
        with simulated_cluster(store, header, evaluators, record, seed, pace) as cluster:

            def watch(until: float, enough: int) -> None:
                while time.monotonic() < until and cluster.usage().spent.evaluations < enough:
                    cluster.look()
                    time.sleep(LOOK_S)

            watch(time.monotonic() + 3 * WARM * BATCH * evaluators / rate + 30, WARM * BATCH * evaluators)
            before, begun = cluster.usage(), time.monotonic()
            while time.monotonic() - begun < seconds:
                cluster.look()
                time.sleep(LOOK_S)
            after, took = cluster.usage(), time.monotonic() - begun
            accepted = cluster.end()
        with open_store(store) as opened:
            checked = check(opened, accepted)
        size = Path(store).stat().st_size
    done = after.spent.evaluations - before.spent.evaluations
    cpu = {
        name: 1e3 * (getattr(after, name) - getattr(before, name)) / max(done, 1)
        for name in ("engine", "proposer", "evaluators", "driver")
    }
    return {
        "evaluators": evaluators,
        "seconds_per_evaluation": record.mean_s / pace,
        "batch": BATCH,
        "window_s": took,
        "evaluations": done,
        "per_second": done / took,
        "cpu_ms": cpu,
        "engine_limit_per_second": 1e3 / cpu["engine"] if cpu["engine"] else 0.0,
        "recorded": checked["evaluations"],
        "twice": checked["twice"],
        "accepted_and_not_recorded": checked["lost"],
        "store_bytes_per_variant": size / max(checked["evaluations"], 1),
    }


def check(store: PopulationStore, accepted: int) -> dict[str, int]:
    """What the journal holds: verdicts, requests with two outcomes or verdicts, and verdicts that were accepted and are missing."""
    outcomes: Counter[int] = Counter()
    verdicts: Counter[tuple[int, str]] = Counter()
    asked: set[int] = set()
    for _, entry in store.journal():
        if isinstance(entry, Request):
            asked.add(entry.number)
        elif isinstance(entry, OutcomeEntry):
            outcomes[entry.number] += 1
        elif isinstance(entry, EvaluationEntry):
            verdicts[entry.number, entry.purpose.value] += 1
    twice = sum(count > 1 for count in (*outcomes.values(), *verdicts.values())) + len(set(outcomes) - asked)
    return {"evaluations": len(verdicts), "twice": twice, "lost": accepted - len(verdicts)}


def rows(runs: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """What is worth a line: its name, and a figure for each run."""

    def line(name: str, text: str, key: str, part: str | None = None) -> tuple[str, ...]:
        return (name, *(text.format(run[key] if part is None else run[key][part]) for run in runs))

    return [
        line("seconds per simulated evaluation, mean", "{:.2f}", "seconds_per_evaluation"),
        line("evaluations per second", "{:,.0f}", "per_second"),
        line("engine and store, CPU per evaluation", "{:.2f} ms", "cpu_ms", "engine"),
        line("driver, CPU per evaluation", "{:.3f} ms", "cpu_ms", "driver"),
        line("proposer (instant model), CPU per evaluation", "{:.2f} ms", "cpu_ms", "proposer"),
        line("all simulated evaluators, CPU per evaluation", "{:.2f} ms", "cpu_ms", "evaluators"),
        line("evaluations per second of one engine core", "{:,.0f}", "engine_limit_per_second"),
        line("evaluations recorded in all", "{:,}", "recorded"),
        line("recorded twice", "{}", "twice"),
        line("accepted and not recorded", "{}", "accepted_and_not_recorded"),
        line("store, bytes per variant", "{:,.0f}", "store_bytes_per_variant"),
    ]


def page(results: Mapping[str, Any]) -> str:
    """Markdown."""
    runs = results["runs"]
    record = results["record"]
    lines = [
        described(results["session"]),
        "",
        f"Seed {results['seed']}, up to {results['rate']:g} evaluations per second. Simulated devices draw times and verdicts from a "
        f"record of {record['device']} ({record['origin']}), their times scaled to that rate. Engine, leases, fencing tokens, long "
        f"polling, batches of {runs[0]['batch']} and the SQLite store are those of a run; the model answers at once. A steady window "
        "after warm-up. CPU is user and system time of all threads of a process, Ray's own included.",
        "",
        "| what | " + " | ".join(f"{run['evaluators']} evaluators" for run in runs) + " |",
        "|---|" + "---|" * len(runs),
        *("| " + " | ".join(row) + " |" for row in rows(runs)),
    ]
    return "\n".join(lines) + "\n"
