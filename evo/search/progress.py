"""What a display shows of a running search: plain, frozen figures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from evo.records import Spent, Status
from evo.search.chains import LINK
from evo.search.ledger import Ledger
from evo.search.settings import Budget
from evo.search.state import TaskState


@dataclass(frozen=True)
class IslandProgress:
    """One island. `best` is its best score, 0 while it is empty; `requests` made for it; `lineages` begun so far."""

    index: int
    members: int
    best: float
    requests: int
    lineages: int
    restarts: int


@dataclass(frozen=True)
class TaskProgress:
    """One task.

    Attributes:
        task: Name.
        evaluations: Search evaluations recorded, over all statuses.
        passed: Those that passed.
        statuses: Status → count.
        pending_evaluations: Variants that await one.
        restarts: Lineages begun in place of abandoned ones.
        best_fitness: Score of the best variant (verified, where it was), 0 before the baseline is known.
        best_speedup: Its point estimate.
        best_latency_us: Its latency, microseconds; infinite before the baseline is known.
        best_variant, best_operator: Its id and the operator that made it; empty before the baseline is known.
        verified: The best variant's verification passed.
        front: Variants on the Pareto front.
        islands: See `IslandProgress`.
    """

    task: str
    evaluations: int
    passed: int
    statuses: dict[Status, int]
    pending_evaluations: int
    restarts: int
    best_fitness: float
    best_speedup: float
    best_latency_us: float
    best_variant: str
    best_operator: str
    verified: bool
    front: int
    islands: tuple[IslandProgress, ...]


@dataclass(frozen=True)
class OperatorProgress:
    """What the bandit of a kernel kind knows of an operator or a chain: whole counts of uses and of gains."""

    kind: str
    operator: str
    uses: int
    gains: int


@dataclass(frozen=True)
class Progress:
    """The whole run.

    Attributes:
        tasks, operators, chains: In the order of the configuration; by kernel kind and name; likewise, all sequences of moves that were
            made (see `evo.search.chains`).
        spent, budget: Used and allowed.
        leased, lent: Evaluations and proposals handed out at this moment.
        phase: ``starting evaluators``, ``search``, ``verify`` or ``finished``.
        failing: Language models that fail again and again, each in words for a person.
    """

    tasks: tuple[TaskProgress, ...]
    operators: tuple[OperatorProgress, ...]
    spent: Spent
    budget: Budget
    leased: int
    lent: int
    phase: str
    failing: tuple[str, ...] = ()
    chains: tuple[OperatorProgress, ...] = ()


def progress_of(ledger: Ledger, leased: int, lent: int, phase: str) -> Progress:
    """Reads the figures off the state."""
    arms = tuple(
        OperatorProgress(kind, name, arm.uses, arm.gains)
        for kind, bandit in ledger.bandits.items()
        for name, arm in sorted(bandit.arms.items())
    )
    tasks = tuple(_task(state) for state in ledger.states.values())
    operators = tuple(arm for arm in arms if LINK not in arm.operator)
    chains = tuple(arm for arm in arms if LINK in arm.operator)
    return Progress(tasks, operators, ledger.meter.spent, ledger.meter.budget, leased, lent, phase, _failing(ledger), chains)


def _failing(ledger: Ledger) -> tuple[str, ...]:
    worst: dict[str, tuple[int, str]] = {}
    for state in ledger.states.values():
        for model, found in state.mix.failing.items():
            worst[model] = max(found, worst.get(model, found))
    said = [f"{model} failed {count} times in a row: {reason}" for model, (count, reason) in sorted(worst.items())]
    claims: Counter[str] = Counter()
    ignored: Counter[str] = Counter()
    for state in ledger.states.values():
        claims.update(state.mix.incredible)
        ignored.update(state.mix.ignored)
    told = "of its replies say that they have more tokens than they can; each counts as the most that it can have"
    said += [f"{model}: {count} {told}" for model, count in sorted(claims.items()) if count]
    left = "replies leave the grammar that was sent with the request, so its server ignores it: is options.server what it is?"
    return (*said, *(f"{model}: {left}" for model, count in sorted(ignored.items()) if count))


def _task(state: TaskState) -> TaskProgress:
    best = state.best()
    islands = tuple(
        IslandProgress(
            island.index,
            len(island.members),
            max((member.score for member in island.members.values()), default=0.0),
            island.requests,
            island.begun,
            island.restarts,
        )
        for island in state.islands
    )
    return TaskProgress(
        task=state.name,
        evaluations=state.statuses.total(),
        passed=state.statuses[Status.PASSED],
        statuses=dict(state.statuses),
        pending_evaluations=len(state.awaiting),
        restarts=state.restarts,
        best_fitness=best.score if best else 0.0,
        best_speedup=best.speedup if best else 0.0,
        best_latency_us=best.latency_us if best else float("inf"),
        best_variant=best.variant_id if best else "",
        best_operator=best.request.operator if best else "",
        verified=best is not None and best.verified is Status.PASSED,
        front=len(state.front.points),
        islands=islands,
    )
