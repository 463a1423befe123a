"""The search of one task as a function of its journal: every entry changes it the same way, live or in a replay."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import ClassVar

from evo.errors import StoreError, TaskError
from evo.evaluation.base import Baseline
from evo.records import Evaluation, Event, EventKind, NoProposal, Proposal, Request, Status, Variant
from evo.search.archive import START, Archive, Note
from evo.search.bandit import Bandit, reward
from evo.search.chains import sequence
from evo.search.exhaustion import Exhaustion
from evo.search.front import Front, Point
from evo.search.islands import Failed, Island
from evo.search.model_mix import ModelMix, Refusal
from evo.search.newest import Newest
from evo.search.past import Past
from evo.search.selection import Member, feature_cell, make_selection
from evo.search.settings import SearchSettings
from evo.search.setup import TaskSetup
from evo.search.traps import Lineage
from evo.search.under_way import UnderWay
from operators.prompting import lesson_line
from population_store.base import EvaluationEntry, OutcomeEntry, PopulationStore, Purpose

NOTHING = ""
"""Root of a lineage that begins with no variant."""

TABU_KEPT = 12
WORKED_KEPT = 8
"""Strategies that gained, of all islands of a task, that operators are told of."""


class TaskState:
    """See the module's docstring. Decisions are made elsewhere (`evo.search.choice`, `evo.search.consequences`).

    Args:
        setup: The task.
        settings: See `SearchSettings`.
        bandit: Of operators; shared by tasks of the same kernel kind.
        mix: Which models there are.
        store: Of the run, for what happened long ago.
    """

    KEPT: ClassVar = (
        "archive",
        "exhaustion",
        "front",
        "mix",
        "under_way",
        "islands",
        "baseline",
        "starts",
        "proposing",
        "awaiting",
        "statuses",
        "attempts",
        "tabu",
        "worked",
        "newest",
        "requests",
        "verified_since_search",
    )

    def __init__(
        self,
        setup: TaskSetup,
        settings: SearchSettings,
        bandit: Bandit,
        mix: ModelMix,
        store: PopulationStore,
    ) -> None:
        self.setup = setup
        self.settings = settings
        self.bandit = bandit
        self.mix = mix
        self.name = setup.task.name
        self.archive = Archive(store.variant)
        self.past = Past(self.name, store)
        self.exhaustion = Exhaustion(settings)
        self.front = Front()
        self.selection = make_selection(settings)
        self.islands = tuple(Island(self.name, index, settings, self.selection) for index in range(settings.islands))
        if not setup.starts:
            for island in self.islands:
                island.open(NOTHING, 0.0)
        self.baseline: Baseline | None = None
        self.failure: TaskError | None = None
        self.starts: list[str] = []
        self.under_way = UnderWay()
        self.proposing: dict[int, Request] = {}
        self.awaiting: dict[int, str] = {}
        self.statuses: Counter[Status] = Counter()
        self.attempts: Counter[str] = Counter()
        self.tabu: deque[str] = deque(maxlen=TABU_KEPT)
        self.worked: deque[str] = deque(maxlen=WORKED_KEPT)
        self.newest: Newest | None = None
        self.requests = 0
        self.verified_since_search = 0

    @property
    def pending(self) -> int:
        """Requests without an outcome, and variants without an evaluation."""
        return len(self.proposing) + len(self.awaiting)

    @property
    def from_nothing(self) -> bool:
        """There is no starting kernel, and none has been made yet."""
        return not self.setup.starts and self.baseline is None

    @property
    def undecided(self) -> bool:
        """Whether it is not known yet if a starting kernel passes."""
        return bool(self.setup.starts) and self.baseline is None and self.failure is None

    @property
    def restarts(self) -> int:
        """Lineages begun in place of abandoned ones."""
        return sum(island.restarts for island in self.islands)

    def best(self) -> Note | None:
        """The variant with the highest score, the oldest of equals; None before the baseline is known."""
        leaders = [island.ranked()[0] for island in self.islands if island.members]
        if not leaders:
            return None
        return self.archive[min(leaders, key=lambda member: member.order).variant_id]

    def redirected(self, number: int) -> Request | None:
        """A question that a model refused, for another one; None where there is none or it came to nothing meanwhile."""

        def still_open(request: Request) -> bool:
            known = all(parent in self.archive for parent in request.parents)
            alive = not self.lineage_of(request).abandoned
            return known and alive and self.exhaustion.is_open(request.operator, request.parents)

        return self.mix.redirected(number, still_open)

    def lineage_of(self, request: Request) -> Lineage:
        """The lineage a request belongs to."""
        return self.islands[request.island].lineages[request.lineage]

    def apply_request(self, request: Request) -> None:
        """A decision of the engine."""
        if request.island >= len(self.islands):
            raise StoreError(
                f"task {self.name}: request {request.number} of the store is for island {request.island}",
                allowed=f"0 to {len(self.islands) - 1}",
                action="resume with the number of islands the run was started with",
            )
        self.requests += 1
        self.archive.hold(*request.parents, *request.parents)  # until its end, and as those of the newest
        self.archive.release(self.newest.request.parents if self.newest is not None else ())
        self.newest = Newest(request) if self.newest is None else self.newest.followed_by(request)
        self.proposing[request.number] = request
        self.under_way.asked(request, repair=self._is_repair(request))
        if self.mix.asked(request):
            self.archive.release(request.parents)
        if request.operator != START:
            self.islands[request.island].requests += 1
            self.lineage_of(request).tried[request.operator] += 1

    def apply_outcome(self, entry: OutcomeEntry) -> None:
        """What came of a request. Either a new variant now awaits evaluation, or nothing new is there."""
        request, outcome, variant = self.proposing.pop(entry.number), entry.outcome, entry.variant
        self.under_way.answered(request)
        refusal = self.mix.answered(request, outcome)
        if refusal is Refusal.PASSED_ON:
            self.archive.hold(*request.parents)
        if request.operator != START:
            self._exchanged(self.lineage_of(request), outcome)
        if variant is None or self.past.knows(variant.variant_id):
            self._nothing_new(request, outcome, variant, refusal)
            self._ended(request)
        else:
            assert isinstance(outcome, Proposal)
            self.past.add(variant.variant_id)
            self.archive.add(Note(variant.variant_id, request, outcome.strategy), variant)
            self.awaiting[entry.number] = variant.variant_id
            if request.operator == START:
                self.starts.append(variant.variant_id)
            else:
                self.exhaustion.fruitful(request.operator, request.parents)
                self.lineage_of(request).strategies.append(outcome.strategy)

    def apply_evaluation(self, entry: EvaluationEntry) -> None:
        """A verdict, of the search or of the verification."""
        evaluation = entry.evaluation
        self.attempts.pop(evaluation.variant_id, None)
        if entry.purpose is Purpose.VERIFY:
            self._verified(evaluation)
            return
        note = self.archive[evaluation.variant_id]
        del self.awaiting[entry.number]
        self.verified_since_search = 0
        note.status, note.stage, note.fitness = evaluation.status, evaluation.stage, evaluation.fitness
        self.statuses[evaluation.status] += 1
        self.archive.evaluated(evaluation)
        if evaluation.plan_hash and evaluation.status is not Status.DUPLICATE:
            self.past.measured(evaluation.device, evaluation.plan_hash, note.variant_id)
        if evaluation.status is Status.PASSED:
            note.score, note.speedup, note.latency_us = evaluation.fitness, evaluation.speedup, evaluation.latency_us
            note.chosen = {case.case: case.configuration for case in evaluation.cases}
        self.archive.descends(note)
        if note.is_start:
            self._ended(note.request)
            if not any(self.archive[variant_id].is_start for variant_id in self.awaiting.values()):
                self._begin()
            return
        self._child_evaluated(note, evaluation)
        self.archive.release([note.variant_id])
        self._ended(note.request)

    def apply_event(self, event: Event) -> None:
        """A consequence that was decided earlier."""
        if event.kind is EventKind.WORKER_LOST:
            self.attempts[event.variant_id] += 1
            return
        island = self.islands[event.island]
        if event.kind in (EventKind.STALLED, EventKind.TRAPPED):
            self.archive.release(island.abandon(event.lineage))
            if event.variant_id != NOTHING:
                self.archive.release([event.variant_id])
            trapped = f" (given up: {event.reason})" if event.kind is EventKind.TRAPPED else ""
            self.tabu.extend(f"{strategy}{trapped}" for strategy in island.lineages[event.lineage].strategies)
        elif event.kind is EventKind.RESTART:
            score = self.archive[event.variant_id].score if event.variant_id != NOTHING else 0.0
            lineage = island.open(event.variant_id, score, replaces=island.last_abandoned)
            if event.variant_id != NOTHING:
                self.archive.hold(event.variant_id)
                self._join(island, event.variant_id, lineage.name)
            island.restarts += 1
        elif event.kind is EventKind.MIGRATION:
            self.islands[event.island - 1].passed_since_migration = 0
            self._join(island, event.variant_id, event.lineage)
            island.lineages[event.lineage].welcomed(self.archive[event.variant_id].score)

    def forget(self) -> None:
        """Drops what no decision can ask for any more."""
        evaluating = (self.archive[variant_id].request for variant_id in self.awaiting.values())
        others = (*self.mix.unanswered, *(() if self.newest is None else (self.newest.request,)))
        pending = {request.lineage for request in (*self.proposing.values(), *evaluating, *others)}
        for island in self.islands:
            island.forget_lineages(pending)
        self.exhaustion.forget(lambda variant_id: variant_id not in self.archive)

    def _ended(self, request: Request) -> None:
        """A request has led to a verdict, or to nothing new."""
        self.under_way.ended(request, repair=self._is_repair(request))
        self.archive.release(request.parents)

    def _begin(self) -> None:
        """All starting kernels are evaluated: the fastest becomes the baseline, every island starts from those that passed."""
        notes = [self.archive[variant_id] for variant_id in self.starts]
        passed = [note for note in notes if note.status is Status.PASSED]
        if not passed:
            evaluation = self.archive.parent(self.starts[0]).evaluation
            reason = "" if evaluation is None else f"{evaluation.status}: {_in_one_line(evaluation.message)}"
            self.failure = TaskError(
                f"task {self.name}: no starting kernel passes",
                given=reason,
                action="mend the kernel, or the task's reference and tolerance",
            )
            return
        base = min(passed, key=lambda note: (note.latency_us, note.request.number))
        self.baseline = Baseline(self.archive.variant(base.variant_id), base.chosen)
        for note in passed:
            # Each was timed against itself; what counts from here on is its place relative to the baseline.
            note.score = note.speedup = base.latency_us / note.latency_us
            self._on_front(note.variant_id)
        for island in self.islands:
            for note in passed:
                lineage = island.open(note.variant_id, note.score)
                self.archive.hold(note.variant_id)
                self._join(island, note.variant_id, lineage.name)

    def _found(self, note: Note) -> None:
        """The first module that passes, where there was no starting kernel: from here on it is what others are compared with."""
        self.baseline = Baseline(self.archive.variant(note.variant_id), note.chosen)
        self.archive.hold(note.variant_id)
        self.starts.append(note.variant_id)

    @staticmethod
    def _exchanged(lineage: Lineage, outcome: Proposal | NoProposal) -> None:
        """What the exchanges behind an outcome cost the lineage, and what they taught it."""
        lineage.paid(math.fsum(exchange.usage.dollars for exchange in outcome.exchanges))
        lessons = filter(None, (lesson_line(exchange.reply) for exchange in reversed(outcome.exchanges)))
        if (lesson := next(lessons, None)) is not None:
            lineage.learned(lesson)

    def _nothing_new(self, request: Request, outcome: Proposal | NoProposal, variant: Variant | None, refusal: Refusal) -> None:
        if request.operator == START:
            return
        if refusal is Refusal.UNREACHED:
            self.lineage_of(request).untried(request.operator)
            return
        applies = not isinstance(outcome, NoProposal) or outcome.failed
        failed = isinstance(outcome, NoProposal) and outcome.failed
        if refusal is not Refusal.PASSED_ON:  # another model may yet make something of it
            open_to_models = applies and refusal is Refusal.NONE
            self.exhaustion.fruitless(request.operator, request.parents, applies=open_to_models, failed=failed)
        if applies:
            self.bandit.learn(request.operator, 0.0)
            self.mix.learn(request, 0.0)
        lineage = self.lineage_of(request)
        if applies and refusal is not Refusal.PASSED_ON and self._is_repair(request):
            lineage.repaired_in_vain()
        if variant is None or not self.archive.is_ancestor(variant.variant_id, request.parents):
            return
        # A model's other spelling of its parent is a change without effect (see `evo.search.outcomes`), not yet a circle.
        if variant.variant_id not in request.parents or not outcome.exchanges:
            lineage.repeated(variant.variant_id)

    def _is_repair(self, request: Request) -> bool:
        """Its main parent failed."""
        return bool(request.parents) and self.archive[request.parents[0]].chain > 0

    def _child_evaluated(self, note: Note, evaluation: Evaluation) -> None:
        request = note.request
        island, lineage = self.islands[request.island], self.lineage_of(request)
        parents = [self.archive[variant_id] for variant_id in request.parents]
        # What is made of no parent has to beat the root of its lineage.
        best_parent = max((parent.score for parent in parents), default=lineage.root_score)
        gained = reward(best_parent, note.score)
        self.bandit.learn(request.operator, gained)
        self._learn_chain(note, parents)
        self.mix.learn(request, gained)
        if evaluation.status is not Status.PASSED and self._is_repair(request):
            lineage.repaired_in_vain()
        if evaluation.status is Status.PASSED:
            if note.score > best_parent > 0:
                self.worked.append(f"{note.strategy} (+{note.score / best_parent - 1:.1%})")
            lineage.passed(note.score)
            self.archive.passed(note)
            island.passed_since_migration += 1
            for repaired in request.parents[:1]:
                self.archive.release(island.forget_failure(repaired))
            if self.from_nothing:
                self._found(note)
            self._on_front(note.variant_id)
            self._join(island, note.variant_id, lineage.name)
        elif evaluation.status is Status.DUPLICATE:
            # Another spelling of its parent is a rewrite without effect; an older ancestor means going in a circle.
            lineage.failed("", 0)
            self.exhaustion.fruitless(request.operator, request.parents)
            original = evaluation.duplicate_of or ""
            if original not in request.parents and self.archive.is_ancestor(original, request.parents):
                lineage.repeated(original)
        else:
            note.chain = (parents[0].chain if parents else 0) + 1
            lineage.failed(evaluation.signature, note.chain)
            if not lineage.abandoned:
                failed = Failed(note.variant_id, request.number, lineage.name, evaluation.stage.rank, note.chain)
                self.archive.hold(note.variant_id)
                self.archive.release(island.remember_failure(failed))

    def _learn_chain(self, note: Note, parents: Sequence[Note]) -> None:
        """What the last two moves gained together; nothing if the second took away from what the first gave."""
        note.before = parents[0].score if parents else 0.0
        first = parents[0] if len(parents) == 1 else None
        if first is None or first.is_start or first.status is not Status.PASSED:
            return
        name = sequence(first.request, note.request)
        if name:
            self.bandit.learn(name, reward(first.before, note.score) if note.score > first.score else 0.0)

    def _verified(self, evaluation: Evaluation) -> None:
        self.verified_since_search += 1
        note = self.archive.get(evaluation.variant_id)
        if note is None:  # it has left the front meanwhile
            return
        self.archive.hold(note.variant_id)  # until all that refers to it has changed
        note.verified = evaluation.status
        note.score = evaluation.fitness
        point = None
        if evaluation.status is Status.PASSED:
            note.speedup, note.latency_us = evaluation.speedup, evaluation.latency_us
            self.archive.evaluated(evaluation)
            point = Point.of(evaluation)
        self._exchange_front(self.front.replace(note.variant_id, point, self._points()))
        for island in self.islands:
            if island.rescore(note.variant_id, note.score):
                self.archive.release([note.variant_id])
        self.archive.release([note.variant_id])

    def _points(self) -> Iterator[Point]:
        """Of all members."""
        for variant_id in dict.fromkeys(variant_id for island in self.islands for variant_id in island.members):
            evaluation = self.archive.parent(variant_id).evaluation
            assert evaluation is not None, "who became a member passed"
            yield Point.of(evaluation)

    def _join(self, island: Island, variant_id: str, lineage: str) -> None:
        """Makes a variant a member of an island and of a lineage there."""
        if variant_id in island.members:
            island.move(variant_id, lineage)
            return
        parent, note = self.archive.parent(variant_id), self.archive[variant_id]
        cell = feature_cell(parent.variant.source, parent.evaluation) if parent.evaluation else ()
        self.archive.hold(variant_id)
        self.archive.release(island.add(Member(variant_id, note.request.number, note.score, lineage, cell)))

    def _on_front(self, variant_id: str) -> None:
        evaluation = self.archive.parent(variant_id).evaluation
        assert evaluation is not None, "a variant is on its way to the front while its evaluation is held"
        self._exchange_front(self.front.add(Point.of(evaluation)))

    def _exchange_front(self, changed: Sequence[str]) -> None:
        """Holds what entered the front and releases what left it."""
        self.archive.hold(*(variant_id for variant_id in changed if variant_id in self.front))
        self.archive.release(variant_id for variant_id in changed if variant_id not in self.front)


def _in_one_line(message: str) -> str:
    """What happened, and the line of the kernel where it did."""
    first, *others = message.splitlines() or [""]
    return " ".join([first, *(line.strip() for line in others if line.strip().startswith("at line "))])
