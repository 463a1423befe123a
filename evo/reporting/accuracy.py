"""How often proposals can be called, are correct and are faster, and pass@k, computed from a run's population store.

*Call accuracy* is the share of proposals whose module traces, compiles and runs, *execution accuracy* that of correct ones. pass@k is
the unbiased estimate of the chance that one of k proposals is correct, 1 − C(n − c, k) / C(n, k) for c correct of n, averaged over
tasks (Chen et al., 2021, "Evaluating Large Language Models Trained on Code"). It assumes independent proposals: those made of
starting kernels, or of none, are; later ones have learned from earlier ones, and are counted apart.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from evo.exchanges import HELD, LEFT
from evo.records import Evaluation, Exchange, NoProposal, Record, Request, Stage, Status
from operators.likeness import NEAR, similarity
from population_store.base import EvaluationEntry, OutcomeEntry, PopulationStore, Purpose

_CALLED = frozenset({Status.PASSED, Status.WRONG_VALUES, Status.WRONG_STRUCTURE, Status.GUARD_VIOLATION})
"""Verdicts on modules that were traced and compiled and gave outputs."""


@dataclass(frozen=True)
class Accuracy(Record):
    """What came of some proposals.

    Attributes:
        proposals: Asked for and answered.
        usable: Gave a module.
        repeated: Of those, gave a module that was known before, perhaps in other words.
        near: Of those, gave one that is nearly one of its parents (see `operators.likeness.NEAR`).
        judged: Have a verdict: that of the known module where they repeat one, none while it is awaited.
        called, correct, faster: Of the judged ones: could be run, are correct, are faster than the baseline.
        dollars: What they cost.
        at_once: Gave a module at the first turn of a model, without a correction.
        compiled: Of the judged ones: were compiled.
        held, left: Whole replies to requests with a grammar that keep to it, and that do not.
    """

    proposals: int = 0
    usable: int = 0
    repeated: int = 0
    near: int = 0
    judged: int = 0
    called: int = 0
    correct: int = 0
    faster: int = 0
    dollars: float = 0.0
    at_once: int = 0
    compiled: int = 0
    held: int = 0
    left: int = 0

    @property
    def finished(self) -> int:
        """Proposals of which is known what came of them: those with a verdict, and those that gave no module."""
        return self.judged + self.proposals - self.usable

    @property
    def call_accuracy(self) -> float:
        """Of the finished ones; 0 for none."""
        return self.called / self.finished if self.finished else 0.0

    @property
    def execution_accuracy(self) -> float:
        """Of the finished ones; 0 for none."""
        return self.correct / self.finished if self.finished else 0.0

    def pass_at(self, k: int) -> float | None:
        """See `pass_at_k`; None where fewer than k are finished."""
        return pass_at_k(self.finished, self.correct, k) if self.finished >= k else None


@dataclass(frozen=True)
class AccuracyReport:
    """A run's figures.

    Attributes:
        first: Task → proposals made of starting kernels or of none, by operators that ask a model.
        later: Task → all other ones of such operators.
        operators: Operator → all its proposals, of every task; also of operators that ask no model.
        tiers: Label of a model → its proposals by round: the first element is of proposals from correct kernels or from none, the next of
            those that mend one that failed, the next of those that mend such a mended one, and so on.
    """

    first: Mapping[str, Accuracy]
    later: Mapping[str, Accuracy]
    operators: Mapping[str, Accuracy]
    tiers: Mapping[str, tuple[Accuracy, ...]]

    def pass_at(self, k: int) -> float | None:
        """Mean over tasks with at least k finished first proposals; None without such a task."""
        found = [value for accuracy in self.first.values() if (value := accuracy.pass_at(k)) is not None]
        return math.fsum(found) / len(found) if found else None


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of k drawn from n samples, c of them correct, is correct.

    Raises:
        ValueError: Not 0 ≤ c ≤ n or not 1 ≤ k ≤ n.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"n {n}, c {c}, k {k}: allowed: 0 ≤ c ≤ n and 1 ≤ k ≤ n")
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / place for place in range(n - c + 1, n + 1))


def read_accuracy(store: PopulationStore) -> AccuracyReport:
    """Reads a store's journal once."""
    reading = _Reading()
    for _, entry in store.journal():
        if isinstance(entry, Request):
            reading.requests[entry.number] = entry
        elif isinstance(entry, OutcomeEntry):
            reading.outcome(entry)
        elif isinstance(entry, EvaluationEntry) and entry.purpose is Purpose.SEARCH:
            reading.verdicts[entry.evaluation.variant_id] = entry.evaluation
    return reading.report()


@dataclass(frozen=True)
class _Answer:
    request: Request
    variant_id: str
    repeated: bool
    near: bool
    exchanges: tuple[Exchange, ...]
    round: int

    @property
    def dollars(self) -> float:
        return math.fsum(exchange.usage.dollars for exchange in self.exchanges)


class _Reading:
    """What of a journal is needed, and the sources of variants while they may be parents."""

    def __init__(self) -> None:
        self.requests: dict[int, Request] = {}
        self.verdicts: dict[str, Evaluation] = {}
        self._answers: list[_Answer] = []
        self._sources: dict[str, str] = {}
        self._starts: set[str] = set()
        self._asking: set[str] = set()
        self._rounds: dict[str, int] = {}

    def outcome(self, entry: OutcomeEntry) -> None:
        request = self.requests[entry.number]
        if request.operator == "start":
            assert entry.variant is not None, "a starting kernel is a variant"
            self._starts.add(entry.variant.variant_id)
            self._sources[entry.variant.variant_id] = entry.variant.source
            return
        if isinstance(entry.outcome, NoProposal) and not entry.outcome.failed:
            return  # the operator does not apply to these parents, so nothing was attempted
        if entry.outcome.exchanges:
            self._asking.add(request.operator)
        number = self._round(request)
        variant_id, repeated, near = "", False, False
        if entry.variant is not None:
            variant_id = entry.variant.variant_id
            repeated = variant_id in self._sources
            parents = [self._sources[parent] for parent in request.parents if parent in self._sources]
            near = not repeated and any(similarity(entry.variant.source, parent) >= NEAR for parent in parents)
            self._sources.setdefault(variant_id, entry.variant.source)
            self._rounds.setdefault(variant_id, number)
        exchanges = tuple(dataclasses.replace(exchange, prompt="", reply="") for exchange in entry.outcome.exchanges)
        self._answers.append(_Answer(request, variant_id, repeated, near, exchanges, number))

    def _round(self, request: Request) -> int:
        """How many variants in a row failed before this request, each made from the one before."""
        parent = request.parents[0] if request.parents else ""
        found = self._verdict(parent)
        return 0 if found is None or found.status is Status.PASSED else self._rounds.get(parent, 0) + 1

    def report(self) -> AccuracyReport:
        first: defaultdict[str, list[_Answer]] = defaultdict(list)
        later: defaultdict[str, list[_Answer]] = defaultdict(list)
        operators: defaultdict[str, list[_Answer]] = defaultdict(list)
        tiers: defaultdict[str, defaultdict[int, list[_Answer]]] = defaultdict(lambda: defaultdict(list))
        for answer in self._answers:
            operators[answer.request.operator].append(answer)
            if answer.exchanges:
                tiers[answer.request.model or answer.exchanges[0].model][answer.round].append(answer)
            if answer.request.operator in self._asking:
                independent = all(parent in self._starts for parent in answer.request.parents)
                (first if independent else later)[answer.request.task].append(answer)
        return AccuracyReport(
            first={name: self._added(first[name]) for name in sorted(first)},
            later={name: self._added(later[name]) for name in sorted(later)},
            operators={name: self._added(operators[name]) for name in sorted(operators)},
            tiers={name: tuple(self._added(found[n]) for n in range(max(found) + 1)) for name, found in sorted(tiers.items())},
        )

    def _added(self, answers: Sequence[_Answer]) -> Accuracy:
        given = [answer for answer in answers if answer.variant_id]
        verdicts = [verdict for answer in given if (verdict := self._verdict(answer.variant_id)) is not None]
        return Accuracy(
            proposals=len(answers),
            usable=len(given),
            repeated=sum(answer.repeated for answer in given),
            near=sum(answer.near for answer in given),
            judged=len(verdicts),
            called=sum(verdict.status in _CALLED for verdict in verdicts),
            correct=sum(verdict.status is Status.PASSED for verdict in verdicts),
            faster=sum(verdict.fitness > 1 for verdict in verdicts),
            dollars=math.fsum(answer.dollars for answer in answers),
            at_once=sum(len(answer.exchanges) == 1 for answer in given),
            compiled=sum(verdict.stage.rank > Stage.COMPILE.rank or verdict.status in _CALLED for verdict in verdicts),
            held=sum(exchange.grammar == HELD for answer in answers for exchange in answer.exchanges),
            left=sum(exchange.grammar == LEFT for answer in answers for exchange in answer.exchanges),
        )

    def _verdict(self, variant_id: str) -> Evaluation | None:
        """That of the variant whose plans it launches, where it was found to be a duplicate."""
        verdict = self.verdicts.get(variant_id)
        seen: set[str] = set()
        while verdict is not None and verdict.duplicate_of is not None and verdict.variant_id not in seen:
            seen.add(verdict.variant_id)
            verdict = self.verdicts.get(verdict.duplicate_of)
        return verdict


def total(parts: Iterable[Accuracy]) -> Accuracy:
    """Sums over tasks or operators."""
    rows = [dataclasses.astuple(part) for part in parts]
    return Accuracy(*(sum(column) for column in zip(*rows, strict=True))) if rows else Accuracy()
