"""Kernel Tuner's strategies on a measured grid, through its own simulation mode: writes its cache format, asks it in its own Python."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from evo.errors import TritonEvolveError
from evo.records import Configuration
from experiments.tuning.grid import Grid
from experiments.tuning.strategies import Course, Oracle, budget, course, observed

STRATEGIES = (
    "genetic_algorithm",
    "dual_annealing",
    "bayes_opt",
    "basinhopping",
    "pso",
    "diff_evo",
    "greedy_ils",
    "simulated_annealing",
)
PREFIX = "Kernel Tuner: "
CHILD = Path(__file__).with_name("kernel_tuner_child.py")


def exported(grid: Grid, seen: Oracle) -> dict[str, Any]:
    """A grid in the format of Kernel Tuner's cache files; times in milliseconds, what failed as a failed compilation."""
    cache = {}
    for entry in grid.entries:
        values = {name: entry.configuration[name] for name in grid.space}
        latency = seen[entry.configuration]
        cache[key(grid, entry.configuration)] = {
            **values,
            "time": "CompilationFailedConfig" if latency is None else latency / 1e3,
            "compile_time": 1e3 * grid.compile_s / len(grid.entries),
            "verification_time": 1e3 * entry.gate_s,
            "benchmark_time": 1e3 * entry.time_s,
            "strategy_time": 0.0,
            "framework_time": 0.0,
            "timestamp": "",
        }
    return {
        "device_name": grid.device,
        "kernel_name": grid.name,
        "problem_size": 1,
        "tune_params_keys": list(grid.space),
        "tune_params": {name: list(choices) for name, choices in grid.space.items()},
        "objective": "time",
        "cache": cache,
    }


def key(grid: Grid, configuration: Configuration) -> str:
    """How Kernel Tuner names a configuration."""
    return ",".join(str(configuration[name]) for name in grid.space)


def kernel_tuner_courses(
    python: str,
    grids: Sequence[Grid],
    seeds: Sequence[int],
    noise: dict[str, float],
    share: float,
    strategies: Sequence[str] = STRATEGIES,
    deadline_s: float = 1800.0,
    workers: int = 1,
) -> list[Course]:
    """The courses of all its strategies.

    Args:
        python: An interpreter that has the package kernel-tuner.
        grids, seeds: Each with each.
        noise: Per grid, see `observed`.
        share: Of the valid configurations, as trials; Kernel Tuner counts each distinct configuration once, failed ones too.
        strategies: Of Kernel Tuner.
        deadline_s: For everything.
        workers: Processes.

    Raises:
        TritonEvolveError: The interpreter lacks the package, or it failed.
    """
    with tempfile.TemporaryDirectory(prefix="triton-evolve-tuner-") as folder:
        asked = []
        oracles: dict[tuple[str, int], Oracle] = {}
        for grid in grids:
            for seed in seeds:
                seen = oracles[grid.name, seed] = observed(grid, seed, noise[grid.name])
                path = Path(folder) / f"{grid.name}-{seed}.json"
                path.write_text(json.dumps(exported(grid, seen)), encoding="utf-8")
                asked.append({"cache": str(path), "seed": seed, "trials": budget(grid, share), "grid": grid.name})
        parts = [asked[place::workers] for place in range(min(workers, len(asked)))]
        with ThreadPoolExecutor(len(parts)) as threads:
            answers = threads.map(
                lambda place: _ask(python, Path(folder), place, parts[place], strategies, deadline_s), range(len(parts))
            )
            found = [item for answer in answers for item in answer]
        order = {(item["grid"], item["seed"]): place for place, item in enumerate(asked)}
        found.sort(key=lambda item: order[item["grid"], item["seed"]])
    named = {grid.name: {key(grid, entry.configuration): entry.configuration for entry in grid.entries} for grid in grids}
    every = {grid.name: grid for grid in grids}
    return [
        course(
            every[item["grid"]],
            PREFIX + item["strategy"],
            item["seed"],
            [named[item["grid"]][text] for text in item["tried"]],
            oracles[item["grid"], item["seed"]],
        )
        for item in found
    ]


def _ask(
    python: str, folder: Path, place: int, asked: Sequence[dict[str, Any]], strategies: Sequence[str], deadline_s: float
) -> list[dict[str, Any]]:
    """What one process of its interpreter answers."""
    request, answer = folder / f"request-{place}.txt", folder / f"answer-{place}.txt"
    request.write_text(json.dumps({"asked": asked, "strategies": list(strategies)}), encoding="utf-8")
    command = [python, str(CHILD), str(request), str(answer)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=deadline_s, check=False, cwd=folder)
    if ran.returncode or not answer.exists():
        raise TritonEvolveError(f"Kernel Tuner failed in {python}: {ran.stderr.strip().splitlines()[-1:]}")
    found: list[dict[str, Any]] = json.loads(answer.read_text(encoding="utf-8"))
    return found
