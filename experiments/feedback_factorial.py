"""What a grammar, the compiler's messages and the judge's evidence are each worth to one model: a 2³ factorial over our tasks.

    python -m experiments.feedback_factorial --config configs/local.yaml --tasks softmax,swiglu --n 4 --rounds 1

In each of eight arms the model is asked n times per task for a better module than the starting kernel, and then up to `rounds` times to
mend what failed. With a *grammar* its replies are held to it (`--form`). After a failure before the kernel ran (lint, trace, compilation),
*compiler* feedback is the evidence of it; after a wrong result, *correctness* feedback is. Without the feedback of its kind, and after a
reply without a module, the first question is put again. Every arm gets the same questions and the same number of turns.
Design: TritonGen's (grammar, correctness and compiler feedback crossed).
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import json
import math
import platform
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from evo.cluster.setup import context_of
from evo.config import ModelSection, read_config
from evo.errors import ConfigError
from evo.evaluation.base import Baseline, Evaluator, WorkItem
from evo.evaluation.building import build_evaluator
from evo.evaluation.settings import EvaluationSettings
from evo.exchanges import LEFT
from evo.records import Evaluation, Exchange, NoProposal, Proposal, Stage, Status, Variant
from evo.tasks.base import Task
from evo.tasks.loading import load_task, starting_sources
from operators.base import Operator, Parent
from operators.llm.optimize import LlmOptimize
from operators.llm.repair import LlmRepair
from operators.models.base import Form, Model, Prompt
from operators.models.building import build_model
from operators.models.ledger import Ledger
from operators.models.tier import TierModel

FACTORS = ("grammar", "compiler", "correctness")
OUTCOMES = ("valid", "compiled", "correct", "faster")
_RAN = frozenset({Status.PASSED, Status.WRONG_VALUES, Status.WRONG_STRUCTURE, Status.GUARD_VIOLATION})
_NORMAL = 1.959964


@dataclass(frozen=True)
class Arm:
    """One of the eight."""

    grammar: bool
    compiler: bool
    correctness: bool

    @property
    def name(self) -> str:
        """Its factors that are on."""
        return " + ".join(name for name in FACTORS if getattr(self, name)) or "none"


class Brief(Model):
    """A model that is asked the question alone, for one that reads slowly or forgets the beginning of what it reads."""

    provider = "brief"

    def __init__(self, model: Model) -> None:
        super().__init__(model.name, max_tokens=model.max_tokens)
        self._model = model

    @property
    def supports_grammar(self) -> bool:
        """As the model itself."""
        return self._model.supports_grammar

    async def complete(self, prompt: Prompt) -> Exchange:
        """See `Model.complete`."""
        return await self._model.complete(dataclasses.replace(prompt, stable=()))


ARMS = tuple(Arm(*factors) for factors in itertools.product((False, True), repeat=3))


@dataclass(frozen=True)
class Turn:
    """What came of one question.

    Attributes:
        arm, task, sample, round: Which it is; round 0 is the first question.
        valid, compiled, correct, faster: Each implies the ones before.
        said: Why there is nothing better, in a word or a line.
        left: The reply left the grammar that it was asked in.
        tokens, seconds: Read and written without what was cached; of wall time.
    """

    arm: str
    task: str
    sample: int
    round: int
    valid: bool
    compiled: bool
    correct: bool
    faster: bool
    said: str
    left: bool
    tokens: int
    seconds: float


class Experiment:
    """Runs the arms one after another.

    Args:
        model: Whom all arms ask.
        form: What replies are held to in the arms with a grammar.
        evaluator: Judges.
        target: Of the kernels.
        n: First questions per arm and task.
        rounds: Further turns.
        until: On the monotonic clock; no question is begun in all arms later than this.
    """

    def __init__(
        self, model: Model, form: Form, evaluator: Evaluator, target: str, n: int, rounds: int, until: float = math.inf
    ) -> None:
        self._tiers = {False: TierModel(model, "none", 0), True: TierModel(model, form, 0)}
        self._evaluator = evaluator
        self._target = target
        self._n = n
        self._rounds = rounds
        self._until = until

    async def turns(self, tasks: Sequence[Task]) -> list[Turn]:
        """Everything that was asked, in order."""
        made: list[Turn] = []
        started = [self._started(task) for task in tasks]
        for sample, (task, start, baseline) in itertools.product(range(self._n), started):
            if time.monotonic() > self._until:
                break
            for arm in ARMS:
                chain = [turn async for turn in self._chain(arm, task, sample, start, baseline)]
                made += chain
                print(arm.name, task.name, sample, [turn.said for turn in chain], flush=True)
        return made

    def _started(self, task: Task) -> tuple[Task, Parent, Baseline]:
        start = Variant(task.name, starting_sources(task)[0])
        verdict = self._evaluator.evaluate(WorkItem(0, start, None), lambda plan, variant: None)
        if verdict.status is not Status.PASSED:
            raise SystemExit(f"{task.name}: its starting kernel does not pass: {verdict.status} {verdict.message}")
        return task, Parent(start, verdict), Baseline(start, {case.case: case.configuration for case in verdict.cases})

    async def _chain(self, arm: Arm, task: Task, sample: int, start: Parent, baseline: Baseline) -> Any:
        context = context_of(task, self._target)
        parent, feedback = start, False
        for number in range(1 + self._rounds):
            cls: type[Operator] = LlmRepair if feedback else LlmOptimize
            build: Any = cls
            operator: Operator = build(model=self._tiers[arm.grammar])
            begun = time.perf_counter()
            rng = np.random.default_rng([sample, number])
            outcome = await operator.propose((parent if feedback else start,), context, rng)
            seconds = time.perf_counter() - begun
            verdict = self._judged(task, sample, outcome, baseline)
            yield _turn(arm, task, sample, number, outcome, verdict, seconds)
            if verdict is None:
                feedback = feedback and parent is not start  # there is no module to mend, but there may be an earlier one
                continue
            if verdict.status is Status.PASSED:
                return
            assert isinstance(outcome, Proposal)
            parent = Parent(Variant(task.name, outcome.source), verdict, outcome.strategy)
            feedback = arm.correctness if verdict.status in _RAN else arm.compiler

    def _judged(self, task: Task, sample: int, outcome: Proposal | NoProposal, baseline: Baseline) -> Evaluation | None:
        if isinstance(outcome, NoProposal):
            return None
        item = WorkItem(sample, Variant(task.name, outcome.source), baseline)
        return self._evaluator.evaluate(item, lambda plan, variant: None)


def _turn(
    arm: Arm, task: Task, sample: int, number: int, outcome: Proposal | NoProposal, verdict: Evaluation | None, seconds: float
) -> Turn:
    usage = [exchange.usage for exchange in outcome.exchanges]
    return Turn(
        arm=arm.name,
        task=task.name,
        sample=sample,
        round=number,
        valid=verdict is not None,
        compiled=verdict is not None and (verdict.status in _RAN or verdict.stage.rank > Stage.COMPILE.rank),
        correct=verdict is not None and verdict.status is Status.PASSED,
        faster=verdict is not None and verdict.fitness > 1,
        said=outcome.reason[:160] if isinstance(outcome, NoProposal) else str(verdict.status if verdict else ""),
        left=any(exchange.grammar == LEFT for exchange in outcome.exchanges),
        tokens=sum(item.input_tokens + item.output_tokens for item in usage),
        seconds=round(seconds, 2),
    )


def interval(count: int, of: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    if not of:
        return 0.0, 1.0
    p, z2 = count / of, _NORMAL**2 / of
    half = _NORMAL * math.sqrt(p * (1 - p) / of + z2 / (4 * of))
    return max(0.0, (p + z2 / 2 - half) / (1 + z2)), min(1.0, (p + z2 / 2 + half) / (1 + z2))


def best_of_chains(turns: Sequence[Turn], rounds: int) -> dict[tuple[str, str, int], dict[str, bool]]:
    """(arm, task, sample) → what had been reached after so many further turns."""
    found: dict[tuple[str, str, int], dict[str, bool]] = {}
    for turn in turns:
        if turn.round <= rounds:
            row = found.setdefault((turn.arm, turn.task, turn.sample), dict.fromkeys(OUTCOMES, False))
            row.update({name: row[name] or getattr(turn, name) for name in OUTCOMES})
    return found


Reached = Mapping[tuple[str, str, int], Mapping[str, bool]]
"""(arm, task, sample) → outcome → whether it was reached."""


def effect(reached: Reached, factor: str, outcome: str) -> tuple[float, float, float]:
    """Share of chains with the factor less share of those without it, with Newcombe's 95 % interval (1998, method 10)."""
    on = {arm.name for arm in ARMS if getattr(arm, factor)}
    sides = [[row[outcome] for (arm, _, _), row in reached.items() if (arm in on) == side] for side in (True, False)]
    (first, low, high), (other, other_low, other_high) = (
        (sum(rows) / len(rows), *interval(sum(rows), len(rows))) for rows in sides
    )
    difference = first - other
    below, above = math.hypot(first - low, other_high - other), math.hypot(high - first, other - other_low)
    return difference, difference - below, difference + above


def markdown(results: Mapping[str, Any]) -> str:
    """The page."""
    turns = [Turn(**turn) for turn in results["turns"]]
    return "\n".join([*_head(results, turns), *_arms(turns, results["rounds"]), *_effects(turns, results["rounds"])]) + "\n"


def _head(results: Mapping[str, Any], turns: Sequence[Turn]) -> Iterator[str]:
    yield "# Grammar × compiler feedback × correctness feedback"
    yield ""
    yield f"Model: {results['model']}; grammar form: {results['form']}; tasks: {', '.join(results['tasks'])}."
    yield f"Prompts: {results['prompts']}."
    yield f"Judged on {results['device']}; {_chains(turns)} chains per arm, {results['rounds']} further turn(s) each;"
    yield f"{len(turns)} replies in {results['minutes']:.0f} minutes."
    held = [turn for turn in turns if "grammar" in turn.arm]
    yield f"Of {len(held)} replies in arms with the grammar, {sum(turn.left for turn in held)} whole ones left it."
    yield ""
    yield f"    {results['command']}"
    yield ""


def _chains(turns: Sequence[Turn]) -> int:
    return len({(turn.task, turn.sample) for turn in turns})


def _arms(turns: Sequence[Turn], rounds: int) -> Iterator[str]:
    for number in sorted({0, rounds}):
        reached = best_of_chains(turns, number)
        yield f"## After {number} further turn(s)" if number else "## First replies"
        yield ""
        yield f"| arm | {' | '.join(OUTCOMES)} |"
        yield "|---|" + "---|" * len(OUTCOMES)
        for arm in ARMS:
            rows = [row for (name, _, _), row in reached.items() if name == arm.name]
            cells = []
            for outcome in OUTCOMES:
                count = sum(row[outcome] for row in rows)
                low, high = interval(count, len(rows))
                cells.append(f"{count}/{len(rows)} ({low:.0%}–{high:.0%})")
            yield f"| {arm.name} | {' | '.join(cells)} |"
        yield ""


def _effects(turns: Sequence[Turn], rounds: int) -> Iterator[str]:
    reached = best_of_chains(turns, rounds)
    yield "## Main effects on what a chain reaches (share of chains with it less share without)"
    yield ""
    yield f"| factor | {' | '.join(OUTCOMES)} |"
    yield "|---|" + "---|" * len(OUTCOMES)
    for factor in FACTORS:
        cells = ["{:+.0%} ({:+.0%} … {:+.0%})".format(*effect(reached, factor, outcome)) for outcome in OUTCOMES]
        yield f"| {factor} | {' | '.join(cells)} |"
    yield ""
    yield "An interval that holds 0 shows no effect of its factor. Intervals: 95 %, of shares Wilson's, of differences Newcombe's."


def experiment(section: ModelSection, given: argparse.Namespace) -> dict[str, Any]:
    """Runs it and gives what the page is made of."""
    begun = time.monotonic()
    tasks = [load_task(name) for name in given.tasks.split(",")]
    target = given.device.removeprefix("cpu:") if given.device != "gpu" else given.target
    model = build_model(
        section.provider,
        section.name,
        ledger=Ledger(),
        max_tokens=given.max_tokens or section.max_tokens,
        base_url=section.base_url,
        options=section.options,
    )
    asked_model = Brief(model) if given.brief else model
    settings = EvaluationSettings(target=target, tune_trials=0, deep_tune_trials=0, start_tune_trials=0, race=(8,))
    evaluator = build_evaluator({task.name: task for task in tasks}, settings, given.device)

    async def run() -> list[Turn]:
        try:
            until = begun + given.minutes * 60
            return await Experiment(asked_model, given.form, evaluator, target, given.n, given.rounds, until).turns(tasks)
        finally:
            await model.close()

    try:
        turns = asyncio.run(run())
    finally:
        evaluator.close()
    ask = ["git", "rev-parse", "--short=12", "HEAD"]
    asked = subprocess.run(ask, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return {
        "model": section.name,
        "form": given.form,
        "tasks": [task.name for task in tasks],
        "n": given.n,
        "rounds": given.rounds,
        "device": evaluator.device,
        "minutes": (time.monotonic() - begun) / 60,
        "prompts": "the question alone, without rules, facts and task" if given.brief else "as in a search",
        "command": f"python -m experiments.feedback_factorial --config configs/{given.config.name} --tasks {given.tasks} --n {given.n} "
        f"--rounds {given.rounds} --form {given.form} --max-tokens {given.max_tokens} --device {given.device}{' --brief' * given.brief}",
        "versions": {name: version(name) for name in ("torch", "triton", "llguidance")} | {"python": platform.python_version()},
        "commit": asked.stdout.strip() or "unknown",
        "turns": [dataclasses.asdict(turn) for turn in turns],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the experiment and writes ``feedback_factorial.json`` and ``.md``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True, help="its first model is asked")
    parser.add_argument("--tasks", default="softmax,swiglu")
    parser.add_argument("--n", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=math.inf, help="no further question is begun after these")
    parser.add_argument("--form", choices=("module", "skeleton"), default="skeleton")
    parser.add_argument("--max-tokens", type=int, default=0, help="0: as configured")
    parser.add_argument("--brief", action="store_true", help="ask the question alone, without rules, facts and task")
    parser.add_argument("--device", default="cpu:cuda:90", help="gpu, or cpu:TARGET")
    parser.add_argument("--target", default="cuda:90", help="with --device gpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args(arguments)
    config = read_config(given.config)
    if not config.models:
        raise ConfigError(f"{given.config}: models", action="name the model to ask")
    results = experiment(config.models[0], given)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "feedback_factorial.json").write_text(json.dumps(results, indent=1) + "\n")
    (given.out / "feedback_factorial.md").write_text(markdown(results))
    print(markdown(results))


if __name__ == "__main__":
    main()
