"""How often noise alone wins: twenty copies of one kernel, entered as different variants, against that kernel, again and again.

    python experiments/noise_selection.py --task softmax --seconds 150 --out experiments/results

Every copy has the baseline's speed: both bound a program index, each by another number, so all are different kernels to the evaluator,
which is told to take nothing for a duplicate. A round is a search of its own: its twenty copies are evaluated with the evaluator's own
concurrency, the incumbent is the best fitness so far, from the baseline's 1, and races stop early against it as they do in a search.
Counted: false improvements (fitness above 1), promotions (fitness above the incumbent), and of those the ones that verification
in fresh processes with the full number of pairs confirms, which is what makes an elite. Beside it, on the same cases, the usual
protocol: the mean of `triton.testing.do_bench` of the baseline, then of each copy in turn. Writes noise_selection.json and .md.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import itertools
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, it has its own folder on the path, not the checkout

from evo.commands.bench_mix import restated
from evo.commands.measured import described, measured_with, typed, write_results
from evo.errors import DeviceError
from evo.evaluation.base import Baseline, Effort, Evaluator, WorkItem
from evo.evaluation.building import build_evaluator
from evo.evaluation.inputs import make_inputs
from evo.evaluation.settings import EvaluationSettings
from evo.evaluation.statistics import case_interval
from evo.records import Evaluation, Status, Variant
from evo.tasks.base import Task
from evo.tasks.loading import load_task, starting_sources

NAME = "noise_selection"
NAIVE_THRESHOLDS = (1.0, 1.01, 1.02, 1.05)


@dataclass
class Counts:
    """What happened to the copies. `verdicts` holds the speedup bounds of each evaluation that passed, `cases` per case the point estimates
    and the half-widths of intervals."""

    rounds: int = 0
    evaluated: int = 0
    failed: list[str] = field(default_factory=list)
    false_improvements: int = 0
    promoted: int = 0
    confirmed: int = 0
    verified: int = 0
    rounds_with_promotion: int = 0
    points: list[float] = field(default_factory=list)
    fitness: list[float] = field(default_factory=list)
    pairs: list[int] = field(default_factory=list)
    cases: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, verdict: Evaluation) -> None:
        """Takes one evaluation of a search in."""
        self.evaluated += 1
        if verdict.status is not Status.PASSED:
            self.failed.append(f"{verdict.status.value}: {verdict.message[:200]}")
            return
        self.points.append(verdict.speedup)
        self.fitness.append(verdict.fitness)
        self.pairs.append(max(case.pairs for case in verdict.cases))
        for case in verdict.cases:
            kept = self.cases.setdefault(case.case, {"points": [], "half_widths": []})
            kept["points"].append(case.speedup)
            if len(case.log_ratios) > 1:
                kept["half_widths"].append(case_interval(case.log_ratios, seed=0).half_width)


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="softmax", help="task name or path of a task file")
    parser.add_argument("--cases", type=int, default=2, help="only the task's first training cases, so that more rounds fit")
    parser.add_argument("--copies", type=int, default=20, help="of the starting kernel")
    parser.add_argument(
        "--seconds", type=float, default=150.0, help="wall seconds for everything, verification and do_bench included"
    )
    parser.add_argument("--naive-seconds", type=float, default=35.0, help="of these, for the usual protocol (GPU only)")
    parser.add_argument("--device", default="gpu", help="gpu, or cpu:cuda:90 for the interpreted tier, whose model has no noise")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap and of the inputs")
    parser.add_argument("--out", type=Path, default=Path("experiments/results"), help="folder for the results")
    parser.add_argument("--commit", help="of this project, for copies without their git history")
    options = parser.parse_args(arguments)
    begun = time.monotonic()
    whole = load_task(options.task)
    task = dataclasses.replace(whole, training_cases=whole.training_cases[: options.cases])
    start = starting_sources(task)[0]
    naive_s = options.naive_seconds if options.device == "gpu" else 0.0
    session = measured_with(options.commit, typed(f"python {sys.argv[0]}"))
    results: dict[str, Any] = {"session": session, "task": task.name, "copies": options.copies, "seed": options.seed}
    results["ours"] = ours(task, start, options.copies, options.device, options.seed, begun + options.seconds - naive_s)
    write_results(options.out, NAME, results, page(results))
    if naive_s:
        results["naive"] = naive(task, start, options.copies, options.seed, begun + options.seconds)
        write_results(options.out, NAME, results, page(results))
    print("\n".join(f"{name}: {figure}" for name, figure in rows(results)), flush=True)


def ours(task: Task, start: str, copies: int, device: str, seed: int, until: float) -> dict[str, Any]:
    """Rounds through the evaluator until the time is up; the last one may be incomplete. Each has copies of its own, since what an
    evaluator remembers of a kernel (its graphs, its place in memory) would make the second round repeat the first."""
    settings = EvaluationSettings(tune_trials=0, start_tune_trials=0, seed=seed)
    evaluator = build_evaluator({task.name: task}, settings, device)
    counts, seconds = Counts(), [0.0]
    try:
        baseline = frozen(evaluator, task, restated(start, 0))  # restating costs a little: the baseline pays it too
        with ThreadPoolExecutor(evaluator.concurrency) as threads:
            while not counts.rounds or time.monotonic() + max(seconds) < until:
                search = Search(evaluator, baseline, counts, seed, until)
                numbers = range(1 + counts.rounds * copies, 1 + (counts.rounds + 1) * copies)
                variants = [Variant(task.name, restated(start, number)) for number in numbers]
                seconds += threads.map(search.enter, variants)
                counts.rounds += 1
                counts.rounds_with_promotion += search.incumbent > 1.0
        asked: Callable[[], Mapping[str, int]] = getattr(evaluator, "counters", dict)
        counters = dict(asked())
    finally:
        evaluator.close()
    return {"device": evaluator.device, "race": list(settings.race), "counters": counters, **figures(counts)}


class Search:
    """One round: an incumbent that copies try to beat. Thread-safe."""

    def __init__(self, evaluator: Evaluator, baseline: Baseline, counts: Counts, seed: int, until: float) -> None:
        self._evaluator, self._baseline, self._counts, self._until = evaluator, baseline, counts, until
        self._numbers = itertools.count(seed * 1_000_003 + counts.rounds * 1_009 + 1)
        self._lock = Lock()
        self.incumbent = 1.0

    def enter(self, variant: Variant) -> float:
        """One copy enters; its wall seconds. A promoted copy is verified at once, as an elite is in the end."""
        begun = time.monotonic()
        if self._counts.rounds and begun > self._until:
            return 0.0
        with self._lock:
            number, incumbent = next(self._numbers), self.incumbent
        verdict = self._evaluator.evaluate(WorkItem(number, variant, self._baseline, incumbent=incumbent), nobody)
        with self._lock:
            self._counts.add(verdict)
            promoted = verdict.fitness > self.incumbent
            self._counts.false_improvements += verdict.fitness > 1.0
            self._counts.promoted += promoted
            self.incumbent = max(self.incumbent, verdict.fitness)
        if promoted:
            chosen = {case.case: case.configuration for case in verdict.cases}
            work = WorkItem(number, variant, self._baseline, effort=Effort.VERIFY, chosen=chosen)
            again = self._evaluator.evaluate(work, nobody)
            with self._lock:
                self._counts.verified += again.status is Status.PASSED
                self._counts.confirmed += again.fitness > 1.0
        return time.monotonic() - begun


def frozen(evaluator: Evaluator, task: Task, start: str) -> Baseline:
    """The kernel itself, in its declared configuration.

    Raises:
        DeviceError: It does not pass.
    """
    verdict = evaluator.evaluate(WorkItem(0, Variant(task.name, start), None), nobody)
    if verdict.status is not Status.PASSED:
        raise DeviceError(f"the starting kernel of {task.name} does not pass: {verdict.message}")
    return Baseline(Variant(task.name, start), {case.case: case.configuration for case in verdict.cases})


def nobody(plan_hash: str, variant_id: str) -> None:
    """A claim that always succeeds: nothing is a duplicate."""


def figures(counts: Counts) -> dict[str, Any]:
    """Plain numbers."""
    judged = len(counts.fitness)
    return {
        "rounds": counts.rounds,
        "evaluated": counts.evaluated,
        "failed": counts.failed,
        "false_improvements": counts.false_improvements,
        "promoted": counts.promoted,
        "confirmed_by_verification": counts.confirmed,
        "verified": counts.verified,
        "rounds_with_promotion": counts.rounds_with_promotion,
        "rate_false": counts.false_improvements / judged if judged else None,
        "rate_promoted": counts.promoted / judged if judged else None,
        "rate_confirmed": counts.confirmed / judged if judged else None,
        "upper_bound_confirmed": upper_bound(counts.confirmed, judged),
        "upper_bound_promoted": upper_bound(counts.promoted, judged),
        "points": distribution(counts.points),
        "fitness": distribution(counts.fitness),
        "pairs": distribution([float(item) for item in counts.pairs]),
        "cases": {
            name: {"points": distribution(kept["points"]), "noise_floor": median(kept["half_widths"])}
            for name, kept in counts.cases.items()
        },
    }


def upper_bound(events: int, trials: int) -> float | None:
    """The rate that so few events leave open, one-sided at 95 % (Clopper and Pearson 1934), found by halving."""
    if not trials:
        return None
    low, high = events / trials, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        chance = math.fsum(math.comb(trials, k) * middle**k * (1 - middle) ** (trials - k) for k in range(events + 1))
        low, high = (middle, high) if chance > 0.05 else (low, middle)
    return high


def naive(task: Task, start: str, copies: int, seed: int, until: float) -> dict[str, Any]:
    """Rounds of the usual protocol until the time is up: do_bench of the baseline, then of every copy, means, case by case."""
    from triton.testing import do_bench

    sources = [restated(start, number) for number in range(copies + 1)]
    with tempfile.TemporaryDirectory(prefix="triton-evolve-copies-") as folder:
        calls = [entry(Path(folder) / f"copy_{number}.py", source, task) for number, source in enumerate(sources)]
        inputs = {case: make_inputs(task, case, seed + 1, "cuda").arguments for case in task.training_cases}
        points: list[float] = []
        best: list[float] = []
        longest = 0.0
        while not best or time.monotonic() + longest < until:
            begun = time.monotonic()
            per_case = [naive_speedups(calls, inputs[case], do_bench) for case in task.training_cases]
            speedups = [math.exp(statistics.fmean(map(math.log, values))) for values in zip(*per_case, strict=True)]
            points += speedups
            best.append(max(speedups))
            longest = max(longest, time.monotonic() - begun)
    return {
        "rounds": len(best),
        "evaluated": len(points),
        "points": distribution(points),
        "best_of_a_round": distribution(best),
        "above": {str(limit): sum(point > limit for point in points) / len(points) for limit in NAIVE_THRESHOLDS},
    }


def naive_speedups(calls: Sequence[Callable[..., Any]], inputs: tuple[Any, ...], do_bench: Callable[..., float]) -> list[float]:
    """Mean of the first call's times over that of each other, measured one after the other."""
    times = [float(do_bench(lambda call=call: call(*inputs), warmup=10, rep=50, return_mode="mean")) for call in calls]
    return [times[0] / other for other in times[1:]]


def entry(path: Path, source: str, task: Task) -> Callable[..., Any]:
    """The entry of a module, run as its user runs it."""
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[..., Any] = getattr(module, task.entry)
    return function


def distribution(values: Sequence[float]) -> dict[str, float] | None:
    """Extremes, quartiles and median; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    at = {"min": 0.0, "q25": 0.25, "median": 0.5, "q75": 0.75, "max": 1.0}
    return {name: ordered[round(share * (len(ordered) - 1))] for name, share in at.items()}


def median(values: Sequence[float]) -> float | None:
    """None of nothing."""
    return statistics.median(values) if values else None


def rows(results: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is worth a line, as name and figure."""
    mine = results["ours"]
    yield (
        "evaluated",
        f"{mine['evaluated']} copies in {mine['rounds']} rounds of {results['copies']}, {len(mine['failed'])} failed",
    )
    yield "false improvements (fitness above 1)", rate(mine["false_improvements"], mine["rate_false"])
    bound = mine["upper_bound_promoted"]
    yield "promoted over the incumbent in a search", rate(mine["promoted"], mine["rate_promoted"], bound)
    bound = mine["upper_bound_confirmed"]
    yield "confirmed by verification (elite)", rate(mine["confirmed_by_verification"], mine["rate_confirmed"], bound)
    yield "speedups of copies, point estimates", shown(mine["points"])
    yield "fitness of copies", shown(mine["fitness"])
    yield "pairs per case", shown(mine["pairs"], 0)
    for name, case in mine["cases"].items():
        floor = "" if case["noise_floor"] is None else f"; A/A half-width ±{case['noise_floor']:.2%}"
        yield f"case {name}", shown(case["points"]) + floor
    if "naive" in results:
        naive_ = results["naive"]
        above = ", ".join(f"{share:.0%} above {limit}" for limit, share in naive_["above"].items())
        yield "do_bench means in turn", f"{naive_['evaluated']} copies in {naive_['rounds']} rounds: {above}"
        yield "do_bench, speedups of copies", shown(naive_["points"])
        yield "do_bench, best of a round", shown(naive_["best_of_a_round"])


def rate(events: int, share: float | None, bound: float | None = None) -> str:
    """Events, their share, and what the share may be at most."""
    if share is None:
        return "–"
    return f"{events} ({share:.2%}{'' if bound is None else f', below {bound:.2%} with 95 % confidence'})"


def shown(values: Mapping[str, float] | None, digits: int = 4) -> str:
    """A distribution in one line."""
    if values is None:
        return "–"
    return f"median {values['median']:.{digits}f}, from {values['min']:.{digits}f} to {values['max']:.{digits}f}"


def page(results: Mapping[str, Any]) -> str:
    """Markdown."""
    lines = [
        f"Task {results['task']}, seed {results['seed']}, races of {results['ours']['race']} pairs. {described(results['session'])}",
        "",
        f"{results['copies']} copies of the starting kernel, entered as different variants, against that kernel on "
        f"{results['ours']['device']}, {len(results['ours']['cases'])} training cases.",
        "",
        "| what | figure |",
        "|---|---|",
        *(f"| {name} | {figure} |" for name, figure in rows(results)),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
