"""Our search beside GEAK's and OpenEvolve's loops, on one scripted model: what the first correct module and the best one cost.

    python -m experiments.llm_side_by_side --seeds 20 --evaluations 200

Every arm begins from nothing, on the same simulated landscapes (`evo.evaluation.simulated.Landscape`) and with the same model
(`experiments.scripted_model`), whose answers depend on the prompt alone. The figures say how policies spend evaluations and money on
rugged landscapes where most modules fail; they say nothing of any kernel, nor of the published systems as a whole, whose prompts,
models and evaluators differ.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evo.evaluation.base import WorkItem
from evo.evaluation.simulated import SimulatedEvaluator
from evo.records import Evaluation, Exchange, NoProposal, Proposal, Status, Variant
from evo.search.engine import Engine
from evo.search.settings import Budget, SearchSettings
from evo.search.setup import OperatorInfo, TaskSetup
from evo.search.toy import toy_setup
from experiments.llm_policies import GeakLoop, MendedGeakLoop, OpenEvolveLoop, Policy, Question, child_of
from experiments.scripted_model import ScriptedModel, finished, toy_answer
from operators.base import Operator
from operators.llm.crossover import LlmCrossover
from operators.llm.explore import LlmExplore
from operators.llm.generate import LlmGenerate
from operators.llm.optimize import LlmOptimize
from operators.llm.repair import LlmRepair
from operators.llm.restart import LlmRestart
from operators.models.base import Prompt
from population_store.base import RunHeader
from population_store.opening import open_store

OPERATORS: tuple[type[Operator], ...] = (LlmGenerate, LlmOptimize, LlmCrossover, LlmRepair, LlmExplore, LlmRestart)
FAILURE_RATE = 0.9
"""Share of random modules that fail."""

NEAR = 1.05
"""A search has come to the best once its latency is within this factor of the best that any arm found on the seed."""

RESAMPLES = 10_000
MAX_QUESTIONS = 20
"""Per evaluation, on average; a policy that asks more often without anything to evaluate is stopped."""


@dataclass
class Trace:
    """What a search had used when something happened.

    Attributes:
        evaluations, dollars: So far.
        correct: (evaluations, dollars) at the first correct module; None before.
        bests: (evaluations, dollars, latency) whenever the latency fell.
        repeated: Evaluations of modules that were evaluated before.
    """

    evaluations: int = 0
    dollars: float = 0.0
    correct: tuple[int, float] | None = None
    bests: list[tuple[int, float, float]] = field(default_factory=list)
    repeated: int = 0
    _seen: set[str] = field(default_factory=set)

    def pay(self, exchanges: Sequence[Exchange]) -> None:
        """Exchanges were made."""
        self.dollars += sum(exchange.usage.dollars for exchange in exchanges)

    def judge(self, evaluation: Evaluation) -> None:
        """A module was evaluated."""
        self.evaluations += 1
        self.repeated += evaluation.variant_id in self._seen
        self._seen.add(evaluation.variant_id)
        if evaluation.status is not Status.PASSED:
            return
        self.correct = self.correct or (self.evaluations, self.dollars)
        if not self.bests or evaluation.latency_us < self.bests[-1][2]:
            self.bests.append((self.evaluations, self.dollars, evaluation.latency_us))

    @property
    def best(self) -> float:
        """Lowest latency, microseconds; infinite for none."""
        return self.bests[-1][2] if self.bests else float("inf")

    def reaching(self, latency: float) -> tuple[int, float] | None:
        """(evaluations, dollars) when a latency was reached."""
        return next(((count, paid) for count, paid, found in self.bests if found <= latency), None)


def search_with_policy(policy: Policy, seed: int, evaluations: int) -> Trace:
    """A policy's search, one question at a time."""
    model, evaluator, trace = ScriptedModel(toy_answer, seed=seed), _evaluator(seed), Trace()
    operators = {cls.name: _with(cls, model) for cls in OPERATORS}
    setup = _setup()
    for number in range(MAX_QUESTIONS * evaluations):
        if trace.evaluations >= evaluations:
            break
        question = policy.ask()
        rng = np.random.default_rng([seed, number])
        context = dataclasses.replace(setup.context, history=question.history)
        if question.reflect:
            trace.pay((_reflection(model, question),))
        outcome = finished(operators[question.operator], question.parents, context, rng)
        assert isinstance(outcome, Proposal | NoProposal)
        trace.pay(outcome.exchanges)
        if isinstance(outcome, NoProposal):
            policy.tell(question, None)
            continue
        variant = Variant(setup.task.name, outcome.source)
        verdict = evaluator.evaluate(WorkItem(number, variant, None), lambda *_: None)
        trace.judge(verdict)
        policy.tell(question, child_of(variant, verdict, outcome.strategy))
    return trace


def search_with_engine(seed: int, evaluations: int, place: Path, islands: int) -> Trace:
    """Our search, one question at a time, with its store at `place`."""
    model, evaluator, trace = ScriptedModel(toy_answer, seed=seed), _evaluator(seed), Trace()
    operators = {cls.name: _with(cls, model) for cls in OPERATORS}
    header = RunHeader("ours", seed, "{}", "{}", "{}", "2026-01-01T00:00:00+00:00")
    with open_store(str(place), header=header) as store:
        engine = Engine(
            seed=seed,
            settings=SearchSettings(islands=islands, verify_elites=0),
            budget=Budget(evaluations=evaluations),
            tasks=[_setup()],
            operators=[OperatorInfo(cls.name, cls.kind, cls.arity, cls.needs_model) for cls in OPERATORS],
            store=store,
            clock=time.monotonic,
        )
        while engine.finished is None:
            for lease in engine.ask_evaluations(1, evaluator.device):
                verdict = evaluator.evaluate(lease.item, engine.claim)
                trace.judge(verdict)
                engine.tell_evaluation(lease.token, verdict)
            for work in engine.ask_proposals(1):
                rng = np.random.default_rng(work.seed)
                outcome = finished(operators[work.request.operator], work.parents, work.context, rng)
                assert isinstance(outcome, Proposal | NoProposal)
                trace.pay(outcome.exchanges)
                engine.tell_proposal(work.request.number, outcome)
    return trace


ARMS: Mapping[str, str] = {
    "ours": "ours, as configured by default (three islands)",
    "ours_one_island": "ours, one island",
    "geak": "GEAK's loop",
    "geak_mended": "GEAK's loop without its two faults",
    "openevolve": "OpenEvolve's loop",
}
OURS: Mapping[str, int] = {"ours": SearchSettings().islands, "ours_one_island": 1}
POLICIES: tuple[type[Policy], ...] = (GeakLoop, MendedGeakLoop, OpenEvolveLoop)


def experiment(seeds: int, evaluations: int) -> dict[str, Any]:
    """All arms on all seeds, as plain JSON values; what was not reached is None."""
    versions = _versions()  # before the runs: the checkout may move on meanwhile
    traces: dict[str, list[Trace]] = {name: [] for name in ARMS}
    with tempfile.TemporaryDirectory() as directory:
        for seed in range(seeds):
            for name, islands in OURS.items():
                place = Path(directory) / f"{name}-{seed}.sqlite"
                traces[name].append(search_with_engine(seed, evaluations, place, islands))
            for cls in POLICIES:
                traces[cls.name].append(search_with_policy(cls(np.random.default_rng(seed)), seed, evaluations))
    best = [min(traces[name][seed].best for name in ARMS) for seed in range(seeds)]
    return {
        "command": f"python -m experiments.llm_side_by_side --seeds {seeds} --evaluations {evaluations}",
        "tier": "simulated",
        "model": "scripted",
        "evaluations": evaluations,
        "failure_rate": FAILURE_RATE,
        "near": NEAR,
        "versions": versions,
        "arms": {name: _figures(found, best) for name, found in traces.items()},
    }


def _figures(traces: Sequence[Trace], best: Sequence[float]) -> dict[str, Any]:
    near = [trace.reaching(NEAR * latency) for trace, latency in zip(traces, best, strict=True)]
    return {
        "evaluations_to_correct": [trace.correct[0] if trace.correct else None for trace in traces],
        "dollars_to_correct": [round(trace.correct[1], 6) if trace.correct else None for trace in traces],
        "evaluations_to_best": [reached[0] if reached else None for reached in near],
        "dollars_to_best": [round(reached[1], 6) if reached else None for reached in near],
        "best_latency_us": [trace.best if trace.bests else None for trace in traces],
        "dollars": [round(trace.dollars, 6) for trace in traces],
        "evaluations": [trace.evaluations for trace in traces],
        "repeated_evaluations": [trace.repeated for trace in traces],
    }


def compare(ours: Sequence[float | None], theirs: Sequence[float | None]) -> tuple[float, float, float] | None:
    """Geometric mean of theirs ÷ ours, paired by seed, with its 95 % bootstrap interval, over seeds on which both reached something."""
    pairs = [(mine, other) for mine, other in zip(ours, theirs, strict=True) if mine is not None and other is not None]
    if not pairs:
        return None
    logs = np.log([other / mine for mine, other in pairs])
    rng = np.random.default_rng(0)
    means = logs[rng.integers(len(logs), size=(RESAMPLES, len(logs)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(np.exp(logs.mean())), float(np.exp(low)), float(np.exp(high))


def markdown(results: Mapping[str, Any]) -> str:
    """The results as a page for people."""
    arms = results["arms"]
    seeds = len(arms["ours"]["dollars"])
    lines = [
        "# Our search beside GEAK's and OpenEvolve's loops on one scripted model",
        "",
        f"Simulated tier, {seeds} landscapes, {results['evaluations']} evaluations per search, every search from nothing, the same "
        "scripted model and prompts in every arm; what differs is the policy. Dollars are what the exchanges would cost with a large "
        "hosted model. "
        f"Command: `{results['command']}`. Versions: "
        + ", ".join(f"{key} {value}" for key, value in results["versions"].items())
        + ".",
        "",
        "Medians over landscapes (a landscape on which something was never reached counts as the worst):",
        "",
        "| policy | landscapes with a correct one | evaluations to the first | dollars to it | landscapes near the best | "
        "evaluations to it | dollars to it | "
        "dollars in all | repeated evaluations |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, label in ARMS.items():
        figures = arms[name]
        reached = sum(value is not None for value in figures["evaluations_to_best"])
        correct = sum(value is not None for value in figures["evaluations_to_correct"])
        cells = (
            f"{correct} of {seeds}",
            _median(figures["evaluations_to_correct"], "{:.0f}"),
            _median(figures["dollars_to_correct"], "${:.3f}"),
            f"{reached} of {seeds}",
            _median(figures["evaluations_to_best"], "{:.0f}"),
            _median(figures["dollars_to_best"], "${:.3f}"),
            _median(figures["dollars"], "${:.2f}"),
            _median(figures["repeated_evaluations"], "{:.0f}"),
        )
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    lines += [
        "",
        f"*Near the best*: within a factor of {results['near']} of the lowest latency any policy found on that landscape.",
        "",
    ]
    lines += [
        "Latency at the end, theirs ÷ ours by default (geometric mean, 95 % interval; above 1 ours is faster), over landscapes on which"
    ]
    lines += ["both found something correct:", ""]
    for name, label in list(ARMS.items())[1:]:
        ours, theirs = arms["ours"]["best_latency_us"], arms[name]["best_latency_us"]
        found = compare(ours, theirs)
        both = sum(mine is not None and other is not None for mine, other in zip(ours, theirs, strict=True))
        text = "none" if found is None else "{:.3f} ({:.3f} to {:.3f})".format(*found)
        lines.append(f"* {label}: {text}, {both} landscapes")
    return "\n".join([*lines, ""])


def _median(values: Sequence[float | None], form: str) -> str:
    middle = float(np.median([float("inf") if value is None else value for value in values]))
    return "not reached" if middle == float("inf") else form.format(middle)


def _setup() -> TaskSetup:
    return dataclasses.replace(toy_setup(), starts=())


def _evaluator(seed: int) -> SimulatedEvaluator:
    return SimulatedEvaluator(seed, failure_rate=FAILURE_RATE, starts_fail=True)


def _with(cls: type[Operator], model: ScriptedModel) -> Operator:
    build: Callable[..., Operator] = cls
    return build(model=model)


def _reflection(model: ScriptedModel, question: Question) -> Exchange:
    """A request that asks only what went wrong, in prose."""
    evaluation = question.parents[0].evaluation
    text = f"What went wrong?\n\n{question.parents[0].variant.source}\n{evaluation.message if evaluation else ''}"
    coroutine = model.complete(Prompt((), text, "reflection", 1_000))
    try:
        coroutine.send(None)
    except StopIteration as done:
        exchange: Exchange = done.value
        return exchange
    raise RuntimeError("a scripted model waits for nothing")


def _versions() -> dict[str, str]:
    asked = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"],
        cwd=Path(__file__).resolve().parent,
        capture_output=True,
        text=True,
        check=False,
    )
    commit = asked.stdout.strip() if asked.returncode == 0 else "unknown"
    return {"python": platform.python_version(), "numpy": np.__version__, "commit": commit}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the experiment and writes ``llm_side_by_side.json`` and ``.md``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--evaluations", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args(arguments)
    results = experiment(given.seeds, given.evaluations)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "llm_side_by_side.json").write_text(json.dumps(results, indent=1) + "\n")
    (given.out / "llm_side_by_side.md").write_text(markdown(results))
    print(markdown(results))


if __name__ == "__main__":
    main()
