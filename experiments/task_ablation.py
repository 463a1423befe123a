"""What tuning, rewrites and crossover each do: four searches of ten tasks with equal GPU seconds.

    python -m experiments.task_ablation search --gpu-s 80 --out DIR             # on a GPU; again: goes on
    python -m experiments.task_ablation compare --gpu-s 80 --out DIR            # measures the arms' best variants beside each other
    python -m experiments.task_ablation page DIR

Arms: *tuner*: the starting kernels alone, with as many trials as the time allows; *rewrites*: no trials, every module as it declares
itself; *both*; *crossover*: both, and parts are exchanged between variants. No language model. GPU seconds are device time that
evaluations reported, over all tasks of an arm. A search's own speedups are over its own tuned start, and so differ between arms; what is
compared is measured afterwards, all arms' best variants in one process, over the starting kernel with its declared configuration.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evo.commands.measured import described, measured_with
from evo.config import ClusterSection, RunConfig, write_config
from evo.evaluation.settings import EvaluationSettings
from evo.evaluation.statistics import geometric_mean_interval
from evo.registry import find_operators
from evo.search.settings import Budget, SearchSettings
from evo.tasks.loading import load_task
from experiments.side_by_side.measuring import Side, entry_of, measure_case, plain
from operators.base import OperatorKind
from population_store.base import Ranked
from population_store.opening import open_store

NAME = "task_ablation"
TASKS = (
    "softmax", "rms_norm", "layer_norm_backward", "cross_entropy", "swiglu_backward", "quantize_groups", "cumulative_sum",
    "gemm_bias_gelu", "attention", "depthwise_conv2d",
)  # fmt: skip
"""One of each kind that people tune most."""
ARMS = ("tuner", "rewrites", "both", "crossover")
TRIAL_S = 0.03
"""Device time of a trial on four cases, from `experiments/results/tuning_truth`: how many fit into the time."""


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    for name in ("search", "compare"):
        step = steps.add_parser(name)
        step.add_argument("--out", type=Path, required=True)
        step.add_argument("--gpu-s", type=float, required=True, help="of each arm")
        step.add_argument("--tasks", nargs="+", default=list(TASKS))
        step.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
        step.add_argument("--commit", help="for copies without their git history")
        if name == "search":
            step.add_argument("--seed", type=int, default=0)
            step.add_argument("--device", default="gpu", choices=("gpu", "cpu"))
        else:
            step.add_argument("--cases", type=int, default=2, help="training cases of each task that are measured")
    steps.add_parser("page").add_argument("out", type=Path)
    options = parser.parse_args(arguments)
    if options.step == "search":
        for arm in options.arms:
            search(arm, options)
        return
    if options.step == "compare":
        results = compare(options)
        (options.out / f"{NAME}.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    results = json.loads((options.out / f"{NAME}.json").read_text(encoding="utf-8"))
    (options.out / f"{NAME}.md").write_text(page(results), encoding="utf-8")
    print(page(results))


def config_of(arm: str, tasks: Sequence[str], gpu_s: float, seed: int, device: str) -> RunConfig:
    """The configuration of an arm."""
    rules = [(name, cls.kind) for name, cls in find_operators().items() if not cls.needs_model]
    rewrites = tuple(name for name, kind in rules if kind is not OperatorKind.CROSSOVER)
    operators = {"tuner": (), "rewrites": rewrites, "both": rewrites, "crossover": tuple(name for name, _ in rules)}[arm]
    evaluation = EvaluationSettings(tune_trials=6, deep_tune_trials=24, start_tune_trials=24)
    if arm == "tuner":
        evaluation = EvaluationSettings(start_tune_trials=max(1, round(gpu_s / len(tasks) / TRIAL_S)))
    elif arm == "rewrites":
        evaluation = EvaluationSettings(tune_trials=0, deep_tune_trials=0, start_tune_trials=0)
    return RunConfig(
        name=f"ablation-{arm}", seed=seed, tasks=tuple(tasks), operators=operators, budget=Budget(gpu_s=gpu_s), evaluation=evaluation,
        search=SearchSettings(islands=2, verify_elites=2), cluster=ClusterSection(device="gpu" if device == "gpu" else "cpu"),
    )  # fmt: skip


def search(arm: str, options: argparse.Namespace) -> None:
    """Runs or goes on with one arm's search."""
    options.out.mkdir(parents=True, exist_ok=True)
    path, store = options.out / f"{arm}.yaml", options.out / f"{arm}.sqlite"
    write_config(config_of(arm, options.tasks, options.gpu_s, options.seed, options.device), path)
    command = [sys.executable, "-m", "evo.main", "run", str(path), "--store", str(store), "--no-export", "--continue"]
    print(f"{arm} …", flush=True)
    subprocess.run(command, check=True)


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Measures every task's best variants of all arms beside its starting kernel."""
    rows: dict[str, dict[str, Ranked]] = {}
    arms: dict[str, dict[str, Any]] = {}
    for arm in options.arms:
        with open_store(str(options.out / f"{arm}.sqlite")) as store:
            for task in options.tasks:
                if found := store.ranking(task, limit=1):
                    rows.setdefault(task, {})[arm] = found[0]
            arms[arm] = {"evaluations": store.spent.evaluations, "gpu_s": store.spent.gpu_s, "wall_s": store.spent.wall_s}
    measured = []
    for task, best in rows.items():
        measured.append(_measured(task, best, options.cases))
        print(task, {arm: f"{over['point']:.3f}" for arm, over in measured[-1]["speedup"].items()}, flush=True)
    overall = {}
    for arm in options.arms:
        ratios = [ratio for item in measured for ratio in item["ratios"].get(arm, [])]
        if ratios:
            overall[arm] = plain(geometric_mean_interval(ratios, seed=0))
    session = measured_with(options.commit, ["python", "-m", "experiments.task_ablation", *sys.argv[1:]])
    return {"session": session, "gpu_s": options.gpu_s, "arms": arms, "tasks": measured, "overall": overall}


def _measured(name: str, best: Mapping[str, Ranked], most: int) -> dict[str, Any]:
    task = load_task(name)
    start = Path(task.path.parent if task.path else ".", task.starting_kernels[0]).read_text(encoding="utf-8")
    ratios: dict[str, list[list[float]]] = {arm: [] for arm in best}
    cases = []
    places = sorted({round(place * (len(task.training_cases) - 1) / max(most - 1, 1)) for place in range(most)})
    for case in (task.training_cases[place] for place in places):
        sides: dict[str, Side] = {"start": entry_of(task, start, {})}
        for arm, row in best.items():
            judged = {result.case: result.configuration for result in (row.verify or row.search).cases}
            sides[arm] = entry_of(task, row.variant.source, judged[case.name])
        found = measure_case(task, case, sides, "start")
        for arm in best:
            if arm in found["ratios"]:
                ratios[arm].append([-ratio for ratio in found["ratios"][arm]])
        cases.append({"case": case.name, "device_us": found["device_us"], "noise": found["noise"], "failed": found["failed"]})
    speedup = {arm: plain(geometric_mean_interval(items, seed=0)) for arm, items in ratios.items() if items}
    strategies = {arm: row.strategy for arm, row in best.items()}
    return {"task": name, "cases": cases, "ratios": ratios, "speedup": speedup, "strategies": strategies}


def page(results: Mapping[str, Any]) -> str:
    """Markdown."""
    arms = results["arms"]
    lines = [
        described(results["session"]),
        "",
        "Speedup over the starting kernel with its declared configuration: geometric mean over the measured training cases, with the "
        f"lower bound of the interval. Each arm had {results['gpu_s']:g} GPU seconds for all tasks together; the tuner ends when its "
        "trials do.",
        "",
        "| task | " + " | ".join(arms) + " |",
        "|---|" + "---|" * len(arms),
    ]
    for item in results["tasks"]:
        lines.append("| " + " | ".join([item["task"], *(_cell(item["speedup"].get(arm)) for arm in arms)]) + " |")
    lines.append("| " + " | ".join(["**geometric mean**", *(_cell(results["overall"].get(arm)) for arm in arms)]) + " |")
    for name, key, text in (
        ("GPU seconds", "gpu_s", "{:.0f}"),
        ("evaluations", "evaluations", "{}"),
        ("wall seconds", "wall_s", "{:.0f}"),
    ):
        lines.append("| " + " | ".join([name, *(text.format(arm[key]) for arm in arms.values())]) + " |")
    return "\n".join(lines) + "\n"


def _cell(interval: Mapping[str, float] | None) -> str:
    return "–" if interval is None else f"{interval['point']:.3f} (≥ {interval['low']:.3f})"


if __name__ == "__main__":
    main()
