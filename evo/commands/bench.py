"""`triton-evolve bench evaluator`: how many untuned candidates an hour the evaluator judges on this machine, and where its time goes."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from evo.commands.bench_load import Load
from evo.commands.bench_mix import SHARES, Made, Mix, rewrites
from evo.commands.console import make_console
from evo.commands.measured import described, measured_with, queried, typed, write_results
from evo.config import RunConfig
from evo.errors import ConfigError, DeviceError, TaskError
from evo.evaluation.base import Baseline, Evaluator, WorkItem
from evo.evaluation.ladder import LadderEvaluator
from evo.evaluation.settings import EvaluationSettings
from evo.records import Evaluation, LatencyKind, Status, Variant
from evo.registry import evaluator_factory, find_operators

MODELLED = "cpu:cuda:90"
"""The device without a GPU: kernels are interpreted, latencies are modelled for this target."""
NAME = "bench_evaluator"
INCUMBENT = 1.0
"""Fitness to reach: the baseline's own, so that races end early for what is slower, as in a search, and no equal kernel is spared."""
WARM_UP = 3
"""Candidates per thread before the window begins."""


@dataclass(frozen=True)
class Judged:
    """One candidate's way through the evaluator: when it ended (monotonic seconds), wall seconds, and the verdict."""

    kind: str
    ended: float
    wall_s: float
    verdict: Evaluation


@dataclass(frozen=True)
class Window:
    """The steady state: who ended in it, its seconds, seconds per stage, load."""

    judged: tuple[Judged, ...]
    seconds: float
    stages: Mapping[str, float]
    load: Mapping[str, float]


def bench_evaluator_command(task: str, seconds: float, device: str, seed: int, out: Path | None, commit: str | None) -> int:
    """Runs the benchmark and prints it.

    Args:
        task: Task name or path of a task file.
        seconds: Of the window, after warm-up.
        device: ``auto``, ``gpu`` or ``cpu``.
        seed: Of the candidates.
        out: Folder for the results, None writes none.
        commit: See `measured_with`.

    Raises:
        InputError: The task cannot be used.
        DeviceError: A GPU is asked for and there is none, or the starting kernel does not pass.
    """
    console = make_console()
    where = device_named(device)
    settings = EvaluationSettings(tune_trials=0, start_tune_trials=0)
    begun = time.monotonic()
    config = RunConfig(name="bench", tasks=(task,), target="auto" if where == "gpu" else MODELLED.removeprefix("cpu:"))
    evaluator, mix = _prepared(config, settings, where, seed)
    try:
        baseline = _baseline(evaluator, mix, seed)
        console.print(f"{evaluator.device}: the evaluator and its baseline are ready after {time.monotonic() - begun:.1f} s")
        window = _steady(evaluator, mix, baseline, seconds)
        results = {
            "session": measured_with(commit, typed("triton-evolve")),
            "task": mix.task,
            "device": evaluator.device,
            "seed": seed,
            "threads": evaluator.concurrency,
            **_figures(window),
        }
    finally:
        evaluator.close()
    if out is not None:
        write_results(out, NAME, results, page(results))
    _show(console, results)
    return 0


def device_named(device: str) -> str:
    """The device of an evaluator on this machine: ``gpu``, or ``cpu:TARGET`` for modelled latencies.

    Args:
        device: ``auto``, ``gpu`` or ``cpu``.

    Raises:
        ConfigError: Another name.
    """
    if device not in ("auto", "gpu", "cpu"):
        raise ConfigError("--device", given=device, allowed="auto, gpu or cpu")
    found = device == "gpu" or (device == "auto" and bool(queried("name")))
    return "gpu" if found else MODELLED


def _prepared(config: RunConfig, settings: EvaluationSettings, where: str, seed: int) -> tuple[Evaluator, Mix]:
    from evo.cluster.setup import load_tasks, task_setups

    (setup,) = task_setups(config)
    if not setup.starts:
        raise TaskError(f"task {setup.task.name}: no starting kernel", action="give one: candidates are rewrites of it")
    made = rewrites(setup.starts, setup.context, [cls() for cls in find_operators().values() if not cls.needs_model], seed)
    mix = Mix(setup.task.name, [variant.source for variant in setup.starts], setup.task.entry, made, seed)
    return evaluator_factory("kernels")(load_tasks(config), settings, where), mix


def _nobody(plan_hash: str, variant_id: str) -> None:
    """A claim that always succeeds."""


def _baseline(evaluator: Evaluator, mix: Mix, seed: int) -> Baseline:
    """The starting kernel as it is. Its evaluation makes what is made once per task: expected values, A/A noise, warm processes."""
    variant = Variant(mix.task, mix.start)
    verdict = evaluator.evaluate(WorkItem(seed, variant, None), _nobody)
    if verdict.status is not Status.PASSED:
        raise DeviceError(f"the starting kernel of {mix.task} does not pass on {evaluator.device}: {verdict.message}")
    return Baseline(variant, {case.case: case.configuration for case in verdict.cases})


def _steady(evaluator: Evaluator, mix: Mix, baseline: Baseline, seconds: float) -> Window:
    """Keeps every thread of the evaluator busy through warm-up and window; candidates that end after the window do not count."""
    numbers = itertools.count()
    judged: list[Judged] = []
    lock, stop = threading.Lock(), threading.Event()

    def feed() -> None:
        try:
            while not stop.is_set():
                with lock:
                    number = next(numbers)
                entry = _judge(evaluator, mix.candidate(number), baseline, number)
                with lock:
                    judged.append(entry)
        except BaseException:
            stop.set()  # nobody goes on; the error comes out of the loop's result
            raise

    threads = evaluator.concurrency
    with ThreadPoolExecutor(threads) as pool:
        loops = [pool.submit(feed) for _ in range(threads)]
        _wait(stop, lambda: len(judged) >= WARM_UP * threads)
        load, stages, begun = Load(), _stages(evaluator), time.monotonic()
        stop.wait(seconds)
        ended = time.monotonic()
        stages_after, measured = _stages(evaluator), load.stop()
        stop.set()
        for loop in loops:
            loop.result()
    spent = {key: after - stages.get(key, 0.0) for key, after in stages_after.items()}
    return Window(tuple(item for item in judged if begun <= item.ended < ended), ended - begun, spent, measured)


def _wait(stop: threading.Event, ready: Callable[[], bool]) -> None:
    while not ready() and not stop.wait(0.05):
        pass


def _judge(evaluator: Evaluator, made: Made, baseline: Baseline, number: int) -> Judged:
    started = time.monotonic()
    variant = Variant(baseline.variant.task, made.source)
    verdict = evaluator.evaluate(WorkItem(number, variant, baseline, incumbent=INCUMBENT), _nobody)
    ended = time.monotonic()
    return Judged(made.kind, ended, ended - started, verdict)


def _stages(evaluator: Evaluator) -> dict[str, float]:
    return dict(evaluator.stage_seconds()) if isinstance(evaluator, LadderEvaluator) else {}


def _figures(window: Window) -> dict[str, Any]:
    """Plain numbers of a window."""
    walls, stages = [item.wall_s for item in window.judged], dict(window.stages)
    count = len(walls)
    verdicts: dict[str, Counter[str]] = {kind: Counter() for kind in SHARES}
    for item in window.judged:
        verdicts[item.kind][item.verdict.status.value] += 1
    passed = [item.verdict for item in window.judged if item.verdict.status is Status.PASSED]
    return {
        "latency_kind": passed[0].latency_kind.value if passed and passed[0].latency_kind else "none",
        "window_s": window.seconds,
        "candidates": count,
        "candidates_per_hour": 3600 * count / window.seconds,
        "wall_s": {"median": statistics.median(walls), "p90": _quantile(walls, 0.9)} if walls else None,
        "device_share": stages.pop("device", sum(item.verdict.gpu_s for item in window.judged)) / window.seconds,
        "load": dict(window.load),
        "stage_s": stages,
        "pairs": statistics.median([case.pairs for verdict in passed for case in verdict.cases]) if passed else 0,
        "noise_floor": max((verdict.noise_floor for verdict in passed), default=0.0),
        "mix": dict(SHARES),
        "verdicts": {kind: dict(counted) for kind, counted in verdicts.items() if counted},
        "unexpected": unexpected(window.judged),
    }


def unexpected(judged: Sequence[Judged]) -> list[str]:
    """Candidates that are wrong by construction and passed, one line each; there must be none."""
    wrong = ("wrong", "uncompilable", "torch")
    return [
        f"{item.kind}: {item.verdict.variant_id}"
        for item in judged
        if item.kind in wrong and item.verdict.status is Status.PASSED
    ]


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def rows(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is worth a line, as name and figure."""
    modelled = " (interpreted; latencies are modelled)" if results["latency_kind"] == LatencyKind.MODELLED.value else ""
    found = [
        ("device", f"{results['device']}{modelled}"),
        (
            "candidates per hour",
            f"{results['candidates_per_hour']:,.0f} ({results['candidates']} in {results['window_s']:.0f} s)",
        ),
    ]
    if results["wall_s"]:
        walls = results["wall_s"]
        found.append(("wall time per candidate", f"median {walls['median']:.2f} s, 90 % below {walls['p90']:.2f} s"))
    found.append(("threads that evaluate", str(results["threads"])))
    load = results["load"]
    if results["latency_kind"] == LatencyKind.MEASURED.value:
        found.append(("GPU in use by a call of the evaluator", f"{results['device_share']:.0%} of the time"))
        found.append(("timed pairs per case, median of what passed", f"{results['pairs']:.0f}"))
        found.append(("noise floor (A/A)", f"±{results['noise_floor']:.2%}"))
    if "gpu" in load:
        found.append(("GPU utilisation (NVML)", f"{load['gpu']:.0%} on average"))
    found.append(("CPU busy (whole machine)", f"{load['cpu']:.0%}"))
    total = max(results["candidates"], 1)
    for stage, seconds in results["stage_s"].items():
        found.append((f"{stage}, thread time per candidate", f"{1e3 * seconds / total:.0f} ms"))
    for kind, counted in results["verdicts"].items():
        found.append((f"verdicts on “{kind}”", ", ".join(f"{count} {status}" for status, count in sorted(counted.items()))))
    found.append(("wrong candidates that passed", ", ".join(results["unexpected"]) or "none"))
    return found


def page(results: Mapping[str, Any]) -> str:
    """Markdown."""
    mix = ", ".join(f"{share:.0%} {kind}" for kind, share in results["mix"].items())
    lines = [
        f"Task {results['task']}, seed {results['seed']}. {described(results['session'])}",
        "",
        f"Untuned candidates, all different, through the real evaluator, races against the baseline's own fitness; mix: {mix}. A steady "
        "window after warm-up; baseline, expected values and A/A noise were made before.",
        "",
        "| what | figure |",
        "|---|---|",
        *(f"| {name} | {figure} |" for name, figure in rows(results)),
    ]
    return "\n".join(lines) + "\n"


def _show(console: Console, results: Mapping[str, Any]) -> None:
    table = Table("what", "figure", box=None, header_style="bold", pad_edge=False)
    for name, figure in rows(results):
        table.add_row(name, figure)
    console.print(table)
