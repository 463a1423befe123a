"""Do islands, migration and crossover pay? Four searches on equal simulated landscapes with equal evaluations.

    python -m experiments.islands_ablation --seeds 20 --evaluations 300

Each seed gives one landscape (`evo.evaluation.simulated.Landscape`), on which every arm searches from the same plain module. The
figure compared is the best fitness (simulated speedup over the start) each arm ends with. Differences are of ln(fitness), paired by
seed, with a bootstrap interval over seeds. Simulated figures say how searches compare on rugged landscapes, nothing of any kernel.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from evo.evaluation.simulated import SimulatedEvaluator
from evo.records import NoProposal, Proposal
from evo.search.engine import Engine, ProposalWork
from evo.search.settings import Budget, SearchSettings
from evo.search.toy import ToyCrossover, ToyFlag, ToyKnob, ToyRepair, infos, toy_setup
from operators.base import Operator
from population_store.base import RunHeader
from population_store.opening import open_store

RESAMPLES = 10_000
IN_FLIGHT = 6
FAILURE_RATE = 0.9
"""Share of random modules that fail; of children of a variant that passed, about one in seven then does."""


@dataclass(frozen=True)
class Arm:
    """One way to search.

    Attributes:
        name: Key in the results.
        label: For people.
        islands: Populations.
        crossover: Whether parents are combined.
    """

    name: str
    label: str
    islands: int
    crossover: bool

    @property
    def settings(self) -> SearchSettings:
        """Equal total capacity in every arm."""
        share = SearchSettings().crossover_share if self.crossover else 0.0
        return SearchSettings(islands=self.islands, island_capacity=96 // self.islands, crossover_share=share, verify_elites=0)

    @property
    def operators(self) -> tuple[Operator, ...]:
        """Repair is mutation of a failed variant and belongs to every arm."""
        mutations: tuple[Operator, ...] = (ToyKnob(), ToyFlag(), ToyRepair())
        return (*mutations, ToyCrossover()) if self.crossover else mutations


ARMS = (
    Arm("islands", "three islands, migration, crossover", 3, crossover=True),
    Arm("single", "one island, mutation only", 1, crossover=False),
    Arm("islands_mutation", "three islands, migration, mutation only", 3, crossover=False),
    Arm("single_crossover", "one island, crossover", 1, crossover=True),
)


def search(arm: Arm, seed: int, evaluations: int, directory: Path) -> float:
    """Best fitness of one search, with `IN_FLIGHT` proposals and evaluations at a time."""
    header = RunHeader(arm.name, seed, "{}", "{}", "{}", "2026-01-01T00:00:00+00:00")
    evaluator = SimulatedEvaluator(seed, failure_rate=FAILURE_RATE)
    operators = {operator.name: operator for operator in arm.operators}
    with open_store(str(directory / f"{arm.name}-{seed}.sqlite"), header=header) as store:
        engine = Engine(
            seed=seed,
            settings=arm.settings,
            budget=Budget(evaluations=evaluations),
            tasks=[toy_setup()],
            operators=infos(arm.operators),
            store=store,
            clock=time.monotonic,
        )
        while engine.finished is None:
            works = engine.ask_proposals(IN_FLIGHT)
            engine.tell_proposals((work.request.number, propose(operators[work.request.operator], work)) for work in works)
            leases = engine.ask_evaluations(IN_FLIGHT, evaluator.device)
            engine.tell_evaluations([(lease.token, evaluator.evaluate(lease.item, engine.claim)) for lease in leases])
        return engine.progress().tasks[0].best_fitness


def propose(operator: Operator, work: ProposalWork) -> Proposal | NoProposal:
    """The proposal of an operator that waits for nothing."""
    coroutine = operator.propose(work.parents, work.context, np.random.default_rng(work.seed))
    try:
        coroutine.send(None)
    except StopIteration as done:
        outcome: Proposal | NoProposal = done.value
        return outcome
    raise RuntimeError(f"operator {operator.name} waits for something")


def compare(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Ratio of geometric means, paired by seed, with its 95 % bootstrap interval, and the share of seeds won."""
    logs = np.log(ours) - np.log(theirs)
    rng = np.random.default_rng(0)
    means = logs[rng.integers(len(logs), size=(RESAMPLES, len(logs)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return {
        "ratio": math.exp(float(logs.mean())),
        "low": math.exp(float(low)),
        "high": math.exp(float(high)),
        "won": float((logs > 1e-12).mean()),
        "tied": float((np.abs(logs) <= 1e-12).mean()),
    }


def experiment(seeds: int, evaluations: int) -> dict[str, Any]:
    """All arms on all seeds, as plain JSON values."""
    versions = _versions()  # before the runs: the checkout may move on meanwhile
    with tempfile.TemporaryDirectory() as directory:
        best = {arm.name: [search(arm, seed, evaluations, Path(directory)) for seed in range(seeds)] for arm in ARMS}
    counts = sorted({min(5, seeds), seeds})
    return {
        "command": f"python -m experiments.islands_ablation --seeds {seeds} --evaluations {evaluations}",
        "tier": "simulated",
        "evaluations": evaluations,
        "failure_rate": FAILURE_RATE,
        "in_flight": IN_FLIGHT,
        "seeds": list(range(seeds)),
        "versions": versions,
        "best_fitness": best,
        "comparisons": {
            str(count): {arm.name: compare(best["islands"][:count], best[arm.name][:count]) for arm in ARMS[1:]}
            for count in counts
        },
    }


def markdown(results: dict[str, Any]) -> str:
    """The results as a page for people."""
    labels = {arm.name: arm.label for arm in ARMS}
    lines = [
        "# Islands, migration and crossover against one island with mutation only",
        "",
        f"Simulated tier, {results['evaluations']} evaluations per search, the same landscapes in every arm. Command: "
        f"`{results['command']}`. Versions: " + ", ".join(f"{key} {value}" for key, value in results["versions"].items()) + ".",
        "",
    ]
    for count, comparisons in results["comparisons"].items():
        lines += [
            f"## {count} seeds",
            "",
            "| arm | mean | median | min | max | three islands with crossover ÷ this arm (95 % interval) | seeds won / tied |",
            "|---|---|---|---|---|---|---|",
        ]
        for name, values in results["best_fitness"].items():
            found = np.asarray(values[: int(count)])
            row = f"| {labels[name]} | {found.mean():.3f} | {np.median(found):.3f} | {found.min():.3f} | {found.max():.3f} |"
            if name in comparisons:
                item = comparisons[name]
                row += (
                    f" {item['ratio']:.3f} ({item['low']:.3f} to {item['high']:.3f}) | {item['won']:.0%} / {item['tied']:.0%} |"
                )
            else:
                row += " | |"
            lines.append(row)
        lines += ["", _verdict(comparisons["single"]), ""]
    return "\n".join(lines)


def _verdict(item: dict[str, float]) -> str:
    if item["low"] > 1.0:
        return "Three islands with crossover end higher than one island with mutation only; the interval lies above 1."
    if item["high"] < 1.0:
        return "Three islands with crossover end lower than one island with mutation only; the interval lies below 1."
    return "No difference to one island with mutation only is shown: the interval contains 1."


def _versions() -> dict[str, str]:
    try:
        own = version("triton-evolve")
    except PackageNotFoundError:
        own = "not installed"
    place = Path(__file__).resolve().parent
    asked = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=place, capture_output=True, text=True, check=False)
    commit = asked.stdout.strip() if asked.returncode == 0 else "unknown"
    return {"python": platform.python_version(), "numpy": np.__version__, "triton-evolve": own, "commit": commit}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the experiment and writes ``islands_ablation.json`` and ``.md``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--evaluations", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args(arguments)
    results = experiment(given.seeds, given.evaluations)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "islands_ablation.json").write_text(json.dumps(results, indent=1) + "\n")
    (given.out / "islands_ablation.md").write_text(markdown(results))
    print(markdown(results))


if __name__ == "__main__":
    main()
