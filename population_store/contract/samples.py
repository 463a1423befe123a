"""Sample records for tests of stores: small, valid, and different wherever a difference could be lost."""

from __future__ import annotations

from evo.records import (
    CaseResult,
    Configuration,
    Evaluation,
    Event,
    EventKind,
    Exchange,
    LatencyKind,
    NoProposal,
    Proposal,
    Request,
    Spent,
    Stage,
    Status,
    Trial,
    TrustLevel,
    Usage,
    Variant,
)
from population_store.base import Entry, EvaluationEntry, OutcomeEntry, Purpose, RunHeader, TrialEntry

HEADER = RunHeader("sample", 2**63 + 1, '{"a": 1}', '{"softmax": "task = 1"}', '{"python": "3.11"}', "2026-01-01T00:00:00+00:00")
"""A header; its seed needs more than 63 bits."""


def request(number: int, *, task: str = "softmax", parents: tuple[str, ...] = ()) -> Request:
    """A pending request."""
    return Request(number, task, island=number % 3, lineage=f"{task}/{number % 3}/0", operator="widen", parents=parents)


def variant(number: int, *, task: str = "softmax") -> Variant:
    """A variant of its own for every number."""
    return Variant(task, f"# kernel {number}, naïve\nBLOCK = {2 ** (number % 10)}\n")


def exchange(number: int) -> Exchange:
    """An exchange whose texts are as bad as a language model's may be: NUL, a lone surrogate, all line ends."""
    texts = (f"prompt {number}\r\n", f"reply \x00 \ud800 {number}\n")
    return Exchange("model-1", f"p{number}", "t1", *texts, "end_turn", f"req_{number}", 0.1, Usage(10, 20, 3, 4, 0.1 + number))


def outcome(number: int, *, of: Variant | None = None, exchanges: int = 1) -> OutcomeEntry:
    """A proposal of variant `of`, by default the number's own."""
    proposed = of or variant(number)
    return OutcomeEntry(number, Proposal(proposed.source, f"widen {number}", tuple(map(exchange, range(exchanges)))), proposed)


def no_proposal(number: int, *, failed: bool = False) -> OutcomeEntry:
    """A request that came to nothing."""
    return OutcomeEntry(number, NoProposal("has no loop", failed, (exchange(number),)), None)


def passed(number: int, fitness: float, *, of: Variant | None = None, trials: int = 2) -> Evaluation:
    """A PASSED evaluation with a case and some trials, one of which failed."""
    chosen = Configuration({"BLOCK": 128, "EVEN": True, "num_warps": 4})
    case = CaseResult("small", chosen, 1 / 3, 10 / fitness, 10.0, fitness, fitness, fitness + 0.1, 2, 4096, (0.1, 0.2))
    tried = [Trial("small", Configuration({"BLOCK": 2**step}), Status.PASSED, 10.0 + step) for step in range(trials)]
    if tried:
        tried[-1] = Trial("small", chosen, Status.OUT_OF_RESOURCES, None, "shared memory")
    return Evaluation(
        variant_id=(of or variant(number)).variant_id,
        status=Status.PASSED,
        stage=Stage.TIME,
        device="cuda:90 (modelled)",
        plan_hash=f"plan{number}",
        trust=TrustLevel.INTERPRETED,
        latency_kind=LatencyKind.MODELLED,
        fitness=fitness,
        cases=(case,),
        trials=tuple(tried),
        wall_s=0.1,
        gpu_s=0.0,
        noise_floor=0.01,
    )


def failed(number: int, status: Status = Status.WRONG_VALUES, *, of: Variant | None = None) -> Evaluation:
    """A verdict that is not PASSED."""
    duplicate_of = variant(0).variant_id if status is Status.DUPLICATE else None
    message = "case small, row 3: expected 1.0, got \x00"
    return Evaluation(
        (of or variant(number)).variant_id,
        status,
        Stage.GATE,
        "cuda:90 (modelled)",
        plan_hash="plan",
        message=message,
        signature="values@small",
        duplicate_of=duplicate_of,
    )


def searched(number: int, evaluation: Evaluation) -> EvaluationEntry:
    """The evaluation, made during the search."""
    return EvaluationEntry(number, Purpose.SEARCH, evaluation)


def verified(number: int, evaluation: Evaluation) -> EvaluationEntry:
    """The evaluation, made again in a fresh process."""
    return EvaluationEntry(number, Purpose.VERIFY, evaluation)


def tried(number: int, position: int) -> TrialEntry:
    """Trials of one configuration on two cases, one of which it does not fit."""
    configuration = Configuration({"BLOCK": 2**position, "num_warps": 4})
    unfit = Trial("large", configuration, Status.OUT_OF_RESOURCES, None, "shared memory")
    return TrialEntry(number, position, "NVIDIA H200", (Trial("small", configuration, Status.PASSED, 10.0 + position), unfit))


def event(number: int) -> Event:
    """Some event."""
    kind = list(EventKind)[number % len(EventKind)]
    return Event(kind, "softmax", number % 3, f"softmax/{number % 3}/0", "", f"reason {number}")


def history(number: int, *, fitness: float = 1.5) -> list[Entry]:
    """A request with its proposal and its PASSED evaluation."""
    return [request(number), outcome(number), searched(number, passed(number, fitness))]


def batch(index: int) -> list[Entry]:
    """The `index`-th of equally long batches, large enough that a process is likely to be killed inside one."""
    numbers = range(5 * index, 5 * index + 5)
    entries: list[Entry] = [event(index)]
    for number in numbers:
        entries += [request(number), outcome(number), searched(number, passed(number, 1.5, trials=30))]
    return entries


def spent_after(requests: int) -> Spent:
    """A budget that tells how many requests are done."""
    return Spent(evaluations=requests, proposals=2 * requests, wall_s=0.1 * requests, gpu_s=requests / 3, dollars=requests / 7)
