"""Who answered which question how well: the variants of a run as answers to the states that they were made from."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from evo.dataset.prompts import MAX_SOURCE, reply_text
from evo.dataset.reading import Made, Run
from evo.knobs import read_knobs
from evo.records import Configuration, Evaluation, LatencyKind
from evo.reporting.exporting.kernel_text import usual_configuration, with_configuration

START = "start"
"""The operator of starting kernels."""

TUNED_GAIN = 1.02
"""Speedup of the best configuration over the declared one from which on a starting kernel with it is an answer of its own."""


@dataclass(frozen=True)
class Answer:
    """One module as an answer.

    Attributes:
        made: The variant.
        origin: See `evo.dataset.columns`.
        source: The module; for a tuned one with other numbers in CONFIG than the variant's.
        reply: As a model says it, with the strategy.
        model: Who wrote it; empty for none.
        gain: Over the same module as declared; 1 unless tuned.
    """

    made: Made
    origin: str
    source: str
    reply: str
    model: str = ""
    gain: float = 1.0


@dataclass
class State:
    """What was answered about one parent (or about none).

    Attributes:
        parent: None for answers that were given the reference alone.
        answers: In the order of their requests.
    """

    parent: Made | None
    answers: list[Answer] = field(default_factory=list)


def states_of(run: Run, task: str) -> tuple[State, ...]:
    """The states of a task that were asked about, in order; first the one without a parent."""
    states: dict[str, State] = {"": State(None)}
    for made in run.of_task(task):
        if len(made.source) > MAX_SOURCE:
            continue
        parents = run.parents(made)
        if len(parents) != len(made.request.parents) or any(len(item.source) > MAX_SOURCE for item in parents):
            continue
        if parents and parents[0].passed is None and parents[0].failed is None:
            continue  # nothing is known of it that could be asked about
        state = states.setdefault(parents[0].variant_id if parents else "", State(parents[0] if parents else None))
        state.answers += answers_of(run, made)
    return tuple(states.values())


def answers_of(run: Run, made: Made) -> Iterable[Answer]:
    """A variant as an answer, and where it is a starting kernel whose tuning gained, that as well."""
    strategy, exchanges = made.proposal.strategy, made.proposal.exchanges
    if exchanges:
        yield Answer(made, "model", made.source, reply_text(strategy, made.source), exchanges[-1].model)
        return
    if made.request.operator != START:
        yield Answer(made, "rule", made.source, reply_text(strategy, made.source))
        return
    seed = made.source in run.seeds
    about = "the loops that torch.compile makes of the reference" if seed else "a plain kernel that computes the reference"
    yield Answer(made, "compiler" if seed else "start", made.source, reply_text(about, made.source))
    best, gain = _tuned(made)
    if best is not None and gain >= TUNED_GAIN:
        source = with_configuration(made.source, best)
        if source != made.source:
            yield Answer(made, "tuned", source, reply_text(f"{about}, with knobs that suit the target", source), gain=gain)


def improves(answer: Answer, parents: Sequence[Made]) -> bool:
    """Whether an answer is right and, against every parent that is right too, surely faster.

    Surely: the lower bound of its interval lies above the point estimate of theirs; estimates have no interval. Verdicts of another
    device or kind do not compare.
    """
    found = answer.made.passed
    return found is not None and all(parent.passed is None or _beats(found, parent.passed) for parent in parents)


def worse(answer: Answer, chosen: Answer) -> bool:
    """Whether an answer failed, or is surely slower than a right one."""
    if answer.made is chosen.made:
        return answer.gain < chosen.gain
    if answer.made.failed is not None:
        return True
    found, better = answer.made.passed, chosen.made.passed
    return found is not None and better is not None and _beats(better, found)


def _beats(verdict: Evaluation, other: Evaluation) -> bool:
    if (verdict.device, verdict.latency_kind) != (other.device, other.latency_kind):
        return False
    if verdict.latency_kind is LatencyKind.MEASURED:
        return verdict.fitness > other.speedup
    return verdict.fitness > other.fitness * (1 + 1e-9)


def _tuned(made: Made) -> tuple[Configuration | None, float]:
    """The configuration of most cases, and what it gained over the declared one where both were timed."""
    verdict = made.search if made.passed is not None else None
    if verdict is None or not verdict.cases:
        return None, 1.0
    best = usual_configuration({case.case: case.configuration for case in verdict.cases})
    latencies: defaultdict[Configuration, dict[str, float]] = defaultdict(dict)
    for trial in verdict.trials:
        if trial.latency_us is not None:
            latencies[trial.configuration][trial.case] = trial.latency_us
    declared, tuned = latencies.get(read_knobs(made.source).default, {}), latencies.get(best, {})
    shared = sorted(set(declared) & set(tuned))
    if not shared:
        return None, 1.0
    return best, math.exp(math.fsum(math.log(declared[case] / tuned[case]) for case in shared) / len(shared))
