"""Do replay, CUDA graph and profiler agree on how long a kernel takes, from three microseconds to ten milliseconds?

    python experiments/latency_agreement.py --out experiments/results

Kernels: `experiments/agreement/`. Four readings of the device latency of each, on inputs of one distribution that are cold in the L2 cache:

* replay: what the evaluator says (`LadderEvaluator.evaluate`: plans run from binaries in its own process, paired against the same kernel);
* graph: the usual launch of the module, captured in a CUDA graph here, timed by events less the time of an empty graph;
* CUPTI in the graph: durations of the kernels of that graph as torch's profiler records them, without the gaps between them;
* CUPTI, eager: the same of plain calls.

Graphs of kernels that do nothing give what a graph takes besides kernels, which CUPTI does not see. The noise floor is the half-width of
replay's 95 % interval for two equal kernels. Call latency is the wall time of back-to-back calls as a user makes them, dispatch
included, of the kernel, of an equal one (the other side of a comparison) and of torch. Writes latency_agreement.json and .md.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, it has its own folder on the path, not the checkout

import torch

from evo.commands.bench_mix import restated
from evo.commands.measured import described, measured_with, typed, write_results
from evo.evaluation.base import Baseline, Evaluator, WorkItem
from evo.evaluation.building import build_evaluator
from evo.evaluation.inputs import make_inputs
from evo.evaluation.settings import EvaluationSettings
from evo.evaluation.statistics import case_interval
from evo.records import Status, Variant
from evo.tasks.base import Case, Task
from evo.tasks.loading import load_task, starting_sources
from experiments.agreement.page import agreement_page, table
from experiments.side_by_side.measuring import call_us

NAME = "latency_agreement"
FILES = ("scale", "row_softmax", "matmul")
MIN_GRAPH_US, MAX_CALLS, MAX_SETS_BYTES = 300.0, 400, 1 << 30
REPLAYS = 21
CALLS = 20
NODES = 200


@dataclass(frozen=True)
class Plan:
    """How often a graph calls its kernel: over so many sets of inputs, so many times."""

    sets: int
    rounds: int

    @property
    def calls(self) -> int:
        """In one replay."""
        return self.sets * self.rounds


class Bench:
    """The scrubbing of the L2 cache, events, and the empty graph of one device."""

    def __init__(self) -> None:
        self.l2_bytes = int(torch.cuda.get_device_properties(0).L2_cache_size)
        self._scrub = torch.empty(max(2 * self.l2_bytes, 64 << 20), dtype=torch.uint8, device="cuda")
        self._begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.empty_us = 0.0

    def replay_us(self, work: Callable[[], object]) -> float:
        """Microseconds of some work after the L2 cache was overwritten, less those of an empty graph."""
        self._scrub.zero_()
        self._begin.record()
        work()
        self._end.record()
        self._end.synchronize()
        return float(self._begin.elapsed_time(self._end)) * 1e3 - self.empty_us

    def median_us(self, work: Callable[[], object]) -> float:
        """Of several."""
        return statistics.median(self.replay_us(work) for _ in range(REPLAYS))

    def scrub(self) -> None:
        """Overwrites the L2 cache."""
        self._scrub.zero_()


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="gpu", help="gpu, or cpu:cuda:90 for the evaluator's modelled estimates alone")
    parser.add_argument("--only", action="append", choices=FILES, help="only these kernels; may be given several times")
    parser.add_argument("--seed", type=int, default=0, help="of the inputs here; the evaluator draws its own")
    parser.add_argument("--out", type=Path, default=Path("experiments/results"), help="folder for the results")
    parser.add_argument("--commit", help="of this project, for copies without their git history")
    options = parser.parse_args(arguments)
    folder = Path(__file__).parent / "agreement"
    tasks = [load_task(str(folder / f"{name}.py")) for name in options.only or FILES]
    session = measured_with(options.commit, typed(f"python {sys.argv[0]}"))
    results: dict[str, Any] = {"session": session, "seed": options.seed, "overheads": None, "rows": {}}
    for task in tasks:
        for case in task.training_cases:
            results["rows"][f"{task.name.removeprefix('agreement_')} {case.name}"] = {}
    if options.device == "gpu":
        measure_here(results, tasks, options.seed)
        write_results(options.out, NAME, results, agreement_page(results, described(session)))
    measure_replayed(results, tasks, options.device)
    write_results(options.out, NAME, results, agreement_page(results, described(session)))
    print("\n".join(table(results)), flush=True)


def measure_replayed(results: dict[str, Any], tasks: Sequence[Task], device: str) -> None:
    """The evaluator's readings; what is prepared for one kernel overlaps with the timing of another."""
    settings = EvaluationSettings(tune_trials=0, start_tune_trials=0)
    evaluator = build_evaluator({task.name: task for task in tasks}, settings, device)
    try:
        with ThreadPoolExecutor(len(tasks)) as threads:
            for rows in threads.map(lambda task: replayed(evaluator, task), tasks):
                for name, row in rows.items():
                    results["rows"][name].update(row)
    finally:
        evaluator.close()
    results["device"] = evaluator.device


def replayed(evaluator: Evaluator, task: Task) -> dict[str, dict[str, Any]]:
    """A kernel and an equal one, side by side: latencies and the half-width of the interval of their ratio, case by case."""
    start = Variant(task.name, starting_sources(task)[0])
    verdict = evaluator.evaluate(WorkItem(0, start, None), nobody)
    if verdict.status is Status.PASSED:
        baseline = Baseline(start, {case.case: case.configuration for case in verdict.cases})
        verdict = evaluator.evaluate(WorkItem(1, Variant(task.name, restated(start.source, 1)), baseline), nobody)
    if verdict.status is not Status.PASSED:
        return {name_of(task, case): {"problem": f"{verdict.status.value}: {verdict.message}"} for case in task.training_cases}
    return {
        name_of(task, task.case(case.case)): {
            "replay_us": case.latency_us,
            "replay_equal_us": case.baseline_us,
            "noise": case_interval(case.log_ratios, seed=0).half_width if len(case.log_ratios) > 1 else 0.0,
            "pairs": case.pairs,
        }
        for case in verdict.cases
    }


def nobody(plan_hash: str, variant_id: str) -> None:
    """A claim that always succeeds."""


def name_of(task: Task, case: Case) -> str:
    """Key of a row."""
    return f"{task.name.removeprefix('agreement_')} {case.name}"


def measure_here(results: dict[str, Any], tasks: Sequence[Task], seed: int) -> None:
    """The readings that are taken in this process."""
    bench = Bench()
    with tempfile.TemporaryDirectory(prefix="triton-evolve-agreement-") as folder:
        results["overheads"] = overheads(bench, Path(folder))
        for task in tasks:
            source = starting_sources(task)[0]
            texts = {f"{task.name}_kernel": source, f"{task.name}_equal": restated(source, 1)}
            entry, equal = (load(Path(folder), name, text, task.entry) for name, text in texts.items())
            for case in task.training_cases:
                row = measure_case(bench, task, case, entry, seed)
                sets = row.pop("inputs")
                row["call_us"], row["call_equal_us"], row["call_torch_us"] = (
                    call_us(call, sets, CALLS) for call in (entry, equal, task.reference)
                )
                results["rows"][name_of(task, case)].update(row)
                del sets
                torch.cuda.empty_cache()


def measure_case(bench: Bench, task: Task, case: Case, entry: Callable[..., Any], seed: int) -> dict[str, Any]:
    """One kernel on one case: graph and profiler; the inputs come along."""
    first = make_inputs(task, case, seed, "cuda").arguments
    entry(*first)  # compiles
    torch.cuda.synchronize()
    plan = plan_for(statistics.median(bench.replay_us(lambda: entry(*first)) for _ in range(5)), case.bytes, bench.l2_bytes)
    sets = [first, *(make_inputs(task, case, seed + number, "cuda").arguments for number in range(1, plan.sets))]
    graph, kept = captured(lambda: [entry(*arguments) for _ in range(plan.rounds) for arguments in sets])
    graph_us = bench.median_us(graph.replay) / plan.calls
    kernel = f"{task.entry}_kernel"
    in_graph = profiled_us(bench, graph.replay, kernel, plan.calls)
    del graph, kept
    eager = profiled_us(bench, lambda: [entry(*sets[number % len(sets)]) for number in range(plan.calls)], kernel, plan.calls)
    return {
        "calls": plan.calls,
        "sets": plan.sets,
        "graph_us": graph_us,
        "cupti_graph_us": in_graph,
        "cupti_eager_us": eager,
        "inputs": sets,
    }


def plan_for(once_us: float, case_bytes: int, l2_bytes: int) -> Plan:
    """Enough calls for the clock's resolution, and enough sets that twice the L2 cache passes before a set's next turn."""
    calls = max(1, min(MAX_CALLS, round(MIN_GRAPH_US / max(once_us, 1.0))))
    sets = max(1, min(calls, -(-2 * l2_bytes // case_bytes), MAX_SETS_BYTES // case_bytes))
    return Plan(sets, -(-calls // sets))


def captured(calls: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A CUDA graph of some calls, and what they returned: kept, so that no two calls write into the same memory."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        calls()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        kept = calls()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    return graph, kept


def profiled_us(bench: Bench, work: Callable[[], object], kernel: str, calls: int) -> float | None:
    """Mean kernel duration within one piece of work, median over several, from CUPTI; None where the profiler saw no such kernel."""
    from torch.profiler import ProfilerActivity, profile

    with torch.no_grad(), profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(REPLAYS):
            bench.scrub()
            work()
            torch.cuda.synchronize()
    events = [
        event
        for event in profiler.profiler.kineto_results.events()
        if event.device_type().name == "CUDA" and event.name().startswith(kernel)
    ]
    durations = [event.duration_ns() / 1e3 for event in sorted(events, key=lambda event: event.start_ns())]
    if len(durations) < calls:
        return None
    groups = [durations[start : start + calls] for start in range(0, len(durations) - calls + 1, calls)]
    return statistics.median(statistics.fmean(group) for group in groups)


EMPTY = """
import triton
import triton.language as tl


@triton.jit
def nothing_kernel(x_ptr):
    tl.store(x_ptr + tl.program_id(0), 0.0)


def nothing(x):
    nothing_kernel[(1,)](x, num_warps=1)
    return None
"""


def overheads(bench: Bench, folder: Path) -> dict[str, float]:
    """What graphs take besides kernels, from graphs of none, one and many of the smallest kernel; the first is subtracted from here on.

    Returns:
        ``empty_us``: a graph of nothing; ``start_us``: what a graph of one kernel takes beyond that and the kernel; ``gap_us``: what each
        further kernel takes beyond its own duration.
    """
    x = torch.zeros(1, device="cuda")
    nothing = load(folder, "nothing", EMPTY, "nothing")
    nothing(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the graph is empty
        none, _ = captured(lambda: None)
    one, _ = captured(lambda: nothing(x))
    many, _ = captured(lambda: [nothing(x) for _ in range(NODES)])
    empty, single, all_of_them = (bench.median_us(graph.replay) for graph in (none, one, many))
    alone = profiled_us(bench, many.replay, "nothing_kernel", NODES) or 0.0
    bench.empty_us = empty
    return {"empty_us": empty, "start_us": single - alone - empty, "gap_us": (all_of_them - single) / (NODES - 1) - alone}


def load(folder: Path, name: str, source: str, entry: str) -> Callable[..., Any]:
    """The entry of a module, run as its user runs it."""
    path = folder / f"{name}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[..., Any] = getattr(module, entry)
    return function


if __name__ == "__main__":
    main()
