"""Measures, in a fresh process, the best variants of a store beside their starting kernels, torch eager and torch.compile.

    python experiments/task_table.py runs/evolve.sqlite --out experiments/results/h200_tasks

Writes OUT.json (every figure with its interval, and what it was measured with) and OUT.md (the table). Device latency: CUDA graphs over
input sets that exceed twice the L2 cache, less the time of an empty graph, all sides in random order within a round, medians; ratios
with 95 % bootstrap intervals over rounds. Call latency: wall time per call of back-to-back calls as a user makes them, wrapper and
dispatch included. The roofline is the achievable one: copy bandwidth and fp16 matrix rate measured at the start. The variant's modules
run here as Python, as their users run them; their verdicts come from the store.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton

from evo.evaluation.graphs import Stopwatch, event
from evo.evaluation.inputs import make_inputs
from evo.evaluation.statistics import case_interval, geometric_mean_interval
from evo.records import Configuration
from evo.tasks.base import Case, Task
from evo.tasks.loading import load_task
from population_store.base import Ranked
from population_store.opening import open_store

ROUNDS = 40
GRAPH_US = 200.0
CALLS = 30

LIBRARY: Mapping[str, Callable[..., Any]] = {
    "attention": lambda q, k, v, *rest: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
}
"""The well-known library call where the reference in plain torch is not what people would run."""


@dataclass(frozen=True)
class Ceiling:
    """Achievable rates of this device, measured at the start: bytes/s of a large copy, flop/s of an 8192³ fp16 product."""

    bandwidth: float
    flops: float

    def floor_us(self, case: Case) -> float:
        """No kernel for the case runs much faster."""
        return max(case.bytes / self.bandwidth, case.flops / self.flops) * 1e6


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--task", action="append", help="only these tasks")
    parser.add_argument("--commit", help="for checkouts without their git history")
    options = parser.parse_args()
    torch.manual_seed(0)
    ceiling = measure_ceiling()
    with open_store(options.store) as store:
        config = json.loads(store.header.config)
        names = [name for name in json.loads(store.header.tasks) if not options.task or name in options.task]
        rows = {name: store.ranking(name) for name in names}
        starts = {name: baseline_of(rows[name]) for name in names}
    session: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]),
        **versions(options.commit),
        "ceiling": vars(ceiling),
        "seed": config["seed"],
    }
    results = []
    for name in names:
        if not rows[name]:
            continue
        started = time.monotonic()
        results.append(measure_task(load_task(name), rows[name][0], starts[name], ceiling))
        print(summary_line(results[-1]), f"({time.monotonic() - started:.0f} s)", flush=True)
        options.out.with_suffix(".json").write_text(json.dumps({"session": session, "tasks": results}, indent=1))
    options.out.with_suffix(".md").write_text(table(session, results))


def baseline_of(rows: Sequence[Ranked]) -> Ranked:
    """The fastest starting kernel, which the run's speedups are against."""
    return min((row for row in rows if row.request.operator == "start"), key=lambda row: row.search.latency_us)


def measure_task(task: Task, best: Ranked, start: Ranked, ceiling: Ceiling) -> dict[str, Any]:
    """All cases of one task."""
    cases = []
    judged = best.verify or best.search
    for result in judged.cases:
        case = task.case(result.case)
        declared = {item.case: item.configuration for item in start.search.cases}
        sides: dict[str, Callable[..., Any]] = {
            "start": entry_of(task, start.variant.source, declared[case.name]),
            "best": entry_of(task, best.variant.source, result.configuration),
            "eager": task.reference,
            "compiled": torch.compile(task.reference, dynamic=False),
        }
        if task.name in LIBRARY:
            sides["library"] = LIBRARY[task.name]
        cases.append({"case": case.name, "configuration": dict(result.configuration), **measure_case(task, case, sides, ceiling)})
    return {
        "task": task.name,
        "variant": best.variant.variant_id,
        "strategy": best.strategy,
        "operator": best.request.operator,
        "verified": best.verify is not None,
        "noise_floor": judged.noise_floor,
        "store_speedup_low": judged.fitness,
        "cases": cases,
        **{
            f"device_{side}_over_best": overall(cases, side)
            for side in ("start", "eager", "compiled", "library")
            if side in cases[0]["device_us"]
        },
    }


def measure_case(task: Task, case: Case, sides: Mapping[str, Callable[..., Any]], ceiling: Ceiling) -> dict[str, Any]:
    """Device and call latencies of all sides on one case, interleaved."""
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    count = max(1, min(32, -(-2 * l2 // case.bytes)))
    sets = [make_inputs(task, case, 1000 + index, "cuda").arguments for index in range(count)]
    stopwatch = Stopwatch(torch.device("cuda:0"), l2)
    graphs = {side: captured(call, sets, stopwatch) for side, call in sides.items()}
    order = random.Random(case.name)
    device: dict[str, list[float]] = {side: [] for side in sides}
    repeat: list[float] = []
    for _ in range(ROUNDS):
        names = [*sides, "again"]
        order.shuffle(names)
        for name in names:
            graph, calls = graphs["best" if name == "again" else name]
            (repeat if name == "again" else device[name]).append(stopwatch.replay_us(graph) / calls)
    del graphs
    calls_us = {side: call_us(call, sets) for side, call in sides.items()}
    best = statistics.median(device["best"])
    ratios = {
        side: [math.log(a / b) for a, b in zip(device[side], device["best"], strict=True)] for side in sides if side != "best"
    }
    torch.cuda.empty_cache()
    return {
        "device_us": {side: statistics.median(values) for side, values in device.items()},
        "call_us": calls_us,
        "ratios": ratios,
        "intervals": {side: vars_of(case_interval(values, seed=0)) for side, values in ratios.items()},
        "noise": case_interval([math.log(a / b) for a, b in zip(repeat, device["best"], strict=True)], seed=0).half_width,
        "roofline_share": ceiling.floor_us(case) / best,
    }


def captured(call: Callable[..., Any], sets: Sequence[tuple[Any, ...]], stopwatch: Stopwatch) -> tuple[torch.cuda.CUDAGraph, int]:
    """A CUDA graph of several calls over all input sets, and how many calls it holds."""
    with torch.no_grad():
        for arguments in sets:
            call(*arguments)
    once_us = max(0.5, stopwatch.once_us(lambda: call(*sets[0])))
    rounds = max(1, min(400 // len(sets), round(GRAPH_US / (once_us * len(sets)))))
    graph = stopwatch.capture(lambda: [call(*arguments) for _ in range(rounds) for arguments in sets])
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    return graph, rounds * len(sets)


def call_us(call: Callable[..., Any], sets: Sequence[tuple[Any, ...]]) -> float:
    """Median wall microseconds per call over five runs of back-to-back calls, synchronised at both ends."""
    runs = []
    with torch.no_grad():
        for _ in range(5):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for number in range(CALLS):
                call(*sets[number % len(sets)])
            torch.cuda.synchronize()
            runs.append((time.perf_counter() - begin) / CALLS * 1e6)
    return statistics.median(runs)


def measure_ceiling() -> Ceiling:
    """Copies 4 GiB, and multiplies 8192×8192 fp16 matrices of random numbers, ten times each."""
    source = torch.empty(1 << 32, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.float16) for _ in range(2))
    seconds = [best_seconds(lambda: target.copy_(source)), best_seconds(lambda: a @ b)]
    return Ceiling(2 * source.numel() / seconds[0], 2 * 8192**3 / seconds[1])


def best_seconds(work: Callable[[], object]) -> float:
    """Median seconds of ten runs after three."""
    times = []
    for number in range(13):
        begin, end = event(), event()
        begin.record()
        work()
        end.record()
        end.synchronize()
        if number >= 3:
            times.append(float(begin.elapsed_time(end)) / 1e3)
    return statistics.median(times)


def entry_of(task: Task, source: str, configuration: Configuration) -> Callable[..., Any]:
    """The entry of a module of its own, with its CONFIG set."""
    path = Path(tempfile.mkdtemp()) / "kernel.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(f"kernel_{random.getrandbits(48)}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if configuration:
        module.CONFIG.update(configuration)
    entry: Callable[..., Any] = getattr(module, task.entry)
    return entry


def overall(cases: Sequence[Mapping[str, Any]], side: str) -> dict[str, float]:
    """Geometric mean over cases of a side's latency over the best variant's, with its interval."""
    return vars_of(geometric_mean_interval([case["ratios"][side] for case in cases], seed=0))


def vars_of(interval: Any) -> dict[str, float]:
    """Plain numbers of an Interval."""
    return {"point": interval.point, "low": interval.low, "high": interval.high}


def versions(commit: str | None) -> dict[str, str]:
    """What the figures were measured with."""
    smi = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.mem", "--format=csv,noheader"], capture_output=True, text=True
    )
    if commit is None:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    return {
        "gpu": torch.cuda.get_device_name(0),
        "driver_and_clocks": smi.stdout.strip(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "commit": commit,
    }


def summary_line(result: Mapping[str, Any]) -> str:
    """One line per task."""
    over = {key.split("_")[1]: value for key, value in result.items() if key.startswith("device_")}
    return f"{result['task']}: " + ", ".join(
        f"{side} / best {value['point']:.3f} (≥ {value['low']:.3f})" for side, value in over.items()
    )


def table(session: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> str:
    """Markdown, one row per case and one per task."""
    ceiling = session["ceiling"]
    lines = [
        f"{session['gpu']}, driver {session['driver_and_clocks'].split(',')[0]}, torch {session['torch']}, triton {session['triton']}, "
        f"commit {session['commit']}, seed {session['seed']}. Achievable: {ceiling['bandwidth'] / 1e12:.2f} TB/s, "
        f"{ceiling['flops'] / 1e12:.0f} TFLOP/s fp16. `{session['command']}`",
        "",
        "Device latency in µs, call latency in brackets; ratios are latency over the best variant's, with the lower bound of the interval.",
        "",
        "| task, case | start | best | eager | compiled | library | start / best | best compiler / best | roofline | noise |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        for case in result["cases"]:
            lines.append(case_row(result["task"], case))
        lines.append(task_row(result))
    return "\n".join(lines) + "\n"


def case_row(task: str, case: Mapping[str, Any]) -> str:
    """One case."""
    device, call, intervals = case["device_us"], case["call_us"], case["intervals"]
    cells = [
        f"{device[side]:.1f} ({call[side]:.0f})" if side in device else "–"
        for side in ("start", "best", "eager", "compiled", "library")
    ]
    compiler = min((side for side in ("eager", "compiled", "library") if side in device), key=lambda side: device[side])
    ratios = [f"{intervals[side]['point']:.3f} (≥ {intervals[side]['low']:.3f})" for side in ("start", compiler)]
    return (
        "| "
        + " | ".join([f"{task}, {case['case']}", *cells, *ratios, f"{case['roofline_share']:.0%}", f"±{case['noise']:.1%}"])
        + " |"
    )


def task_row(result: Mapping[str, Any]) -> str:
    """The geometric means of one task."""
    over = {side: result.get(f"device_{side}_over_best") for side in ("start", "eager", "compiled", "library")}
    compiler = min((value for side, value in over.items() if side != "start" and value), key=lambda value: value["point"])
    start = over["start"]
    assert start is not None
    cells = [f"**{start['point']:.3f} (≥ {start['low']:.3f})**", f"**{compiler['point']:.3f} (≥ {compiler['low']:.3f})**"]
    return "| " + " | ".join([f"**{result['task']}**, geometric mean", "", "", "", "", "", *cells, "", ""]) + " |"


if __name__ == "__main__":
    main()
