"""The search as `ask` and `tell`: it decides and records, and never proposes or evaluates itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

from evo.errors import TaskError, TaskErrors
from evo.evaluation.base import Effort
from evo.records import Evaluation, Event, EventKind, NoProposal, Proposal, Request, Spent, Status
from evo.search.examples import examples_for
from evo.search.leases import Lease, LeaseBook
from evo.search.ledger import Ledger
from evo.search.lost import LostWork
from evo.search.outcomes import Outcomes
from evo.search.progress import Progress, progress_of
from evo.search.schedule import Schedule
from evo.search.settings import Budget, SearchSettings
from evo.search.setup import OperatorInfo, TaskSetup
from evo.search.waiting import Waiting
from evo.search.work import ProposalWork, proposal_work, search_item, to_verify, verify_item
from operators.base import OperatorKind, Parent
from population_store.base import Entry, EvaluationEntry, PopulationStore, Purpose

__all__ = ["Engine", "OperatorInfo", "ProposalWork", "TaskSetup"]


class Engine:
    """An asynchronous island search over one or more tasks; there are no generations to wait for.

    Whoever drives it asks for proposals and evaluations to make, makes them anywhere in any order, and tells what came of them.
    Equal seed and equal order of tells give equal decisions. Made on the store of an earlier session, it goes on where that
    one was, since its state is a function of the journal: what was recorded is never done again, what was not recorded is handed
    out again. Not thread-safe; it belongs to the one process that owns the store.

    Args:
        seed: Of all randomness.
        settings: How the search decides.
        budget: When it ends.
        tasks: At least one, with differing names.
        operators: The engine only names them. Without any, starting kernels are tuned, and nothing else.
        models: Labels of the language models that operators may ask; none: requests name no model.
        store: Open for writing, by this process.
        clock: Monotonic seconds, for leases and the wall budget only.

    Raises:
        StoreError: The store's journal is of other tasks or of other settings.
        TaskError: A task has no starting kernel, and no operator can make one.
        ValueError: No task, or two operators of one name.
    """

    def __init__(
        self,
        *,
        seed: int,
        settings: SearchSettings,
        budget: Budget,
        tasks: Sequence[TaskSetup],
        operators: Sequence[OperatorInfo],
        store: PopulationStore,
        clock: Callable[[], float],
        models: Sequence[str] = (),
    ) -> None:
        if not tasks:
            raise ValueError("a search needs at least one task")
        self._operators = {operator.name: operator for operator in operators}
        if len(self._operators) != len(operators):
            raise ValueError(f"operators must differ in name, given {', '.join(operator.name for operator in operators)}")
        generating = any(operator.kind is OperatorKind.GENERATE for operator in operators)
        for setup in tasks:
            if not setup.starts and not generating:
                raise TaskError(
                    f"task {setup.task.name}: no starting kernel",
                    action="give one, or a language model and the operator llm_generate, which writes the first one",
                )
        self._ledger = Ledger(
            seed=seed,
            settings=settings,
            budget=budget,
            tasks=tasks,
            operators=operators,
            models=models,
            store=store,
            clock=clock,
        )
        self._book = LeaseBook(self._ledger.epoch, settings.lease_s, clock)
        self._schedule = Schedule(self._ledger, self._book, settings)
        self._waiting = Waiting(self._ledger, self._book)
        self._outcomes = Outcomes(self._ledger.states, store)
        self._lost = LostWork(self._ledger, self._book, self._waiting, settings.max_attempts, clock, self.tell_proposal)
        self._stopped = ""

    # ---- proposals

    def ask_proposals(self, n: int, *, needs_model: bool | None = None) -> tuple[ProposalWork, ...]:
        """Up to `n` proposals to make, recorded before they are returned; fewer where budget, work at hand or ideas are used up.

        Args:
            n: How many.
            needs_model: Only of operators that need a language model (True) or need none (False); None for any. Decisions do not
                depend on it: what does not match waits for a proposer that it matches.
        """
        self.expire()
        if n <= 0 or self._stopped or self._failures or self._ledger.meter.exhausted is not None:
            return ()
        matching = self._waiting.matching(n, lambda request: self._matches(request.operator, needs_model))
        batch: list[Entry] = []
        while len(matching) < n and (request := self._schedule.decide()) is not None:
            batch.extend(self._ledger.apply(request))
            self._waiting.proposals[request.number] = request
            if self._matches(request.operator, needs_model):
                matching.append(request)
        self._ledger.record(batch)
        for request in matching:
            del self._waiting.proposals[request.number]
            self._book.lend(request.number)
        return tuple(map(self._work, matching))

    def tell_proposal(self, number: int, outcome: Proposal | NoProposal) -> bool:
        """Records what came of a request; False if that is known already, or no such request was made."""
        return self.tell_proposals([(number, outcome)])[0]

    def tell_proposals(self, outcomes: Iterable[tuple[int, Proposal | NoProposal]]) -> tuple[bool, ...]:
        """Like `tell_proposal` for several at once, in one commit."""
        batch: list[Entry] = []
        fresh: list[bool] = []
        told = tuple(outcomes)  # whoever makes them lazily fails before anything is applied
        states = [self._ledger.state_of(number) for number, _ in told]
        with self._book.paused():  # in a long run it reads every variant
            self._outcomes.prepare((state, outcome) for state, (_, outcome) in zip(states, told, strict=True))
        for state, (number, outcome) in zip(states, told, strict=True):
            self._book.close(number)
            self._waiting.proposals.pop(number, None)
            fresh.append(state is not None and number in state.proposing)
            if state is not None and fresh[-1]:
                batch.extend(self._ledger.apply(self._outcomes.entry(state, number, outcome)))
                if number in state.awaiting:
                    self._waiting.add(number, state.name)
        self._ledger.record(batch)
        return tuple(fresh)

    # ---- evaluations

    def ask_evaluations(self, n: int, device: str = "") -> tuple[Lease, ...]:
        """Up to `n` evaluations to do, oldest first; verifications once the search has used its budget. The first call begins the
        wall budget: whoever asks is ready.

        Args:
            n: How many.
            device: Device model of the evaluator; equal plans are measured once per device.
        """
        self._ledger.check()
        self._ledger.meter.begin()
        self.expire()
        if n <= 0 or self._stopped or self.failure is not None:
            return ()
        leases: list[Lease] = []
        if self._ledger.meter.time_is_up is None:
            # Where the run will end for a failed start, whether the other tasks can start is worth knowing, too.
            failing = bool(self._failures)
            room = self._ledger.meter.room(self._book.searches_out)
            for number, name in self._waiting.take(min(n, room), lambda state: state.undecided or not failing):
                state = self._ledger.states[name]
                leases.append(self._book.lease(search_item(state, number), name, device))
        if not leases and not self._failures and self._schedule.verifying:
            for name, state in self._ledger.states.items():
                for note in to_verify(state):
                    if len(leases) < n and not self._book.is_leased(note.request.number, Effort.VERIFY):
                        leases.append(self._book.lease(verify_item(state, note), name, device))
        return tuple(leases)

    def lease_again(self, token: str) -> Lease | None:
        """Another lease of an evaluation that is out, because its holder is slow; the first verdict counts. None if it is not out."""
        lease = self._book.leases.get(token)
        if lease is None or self._stopped or self.failure is not None:
            return None
        if lease.item.effort is Effort.SEARCH and not self._ledger.meter.room(self._book.searches_out):
            return None
        return self._book.lease(lease.item, lease.task, self._book.device_of(token))

    def renew(self, work: Iterable[str | int]) -> tuple[bool, ...]:
        """Extends leases (by token) and proposals (by number); False for those that are not out any more."""
        return tuple(self._book.renew(item) for item in work)

    def claim(self, plan_hash: str, variant_id: str) -> str | None:
        """Whether another variant of the task has this plan on this device: its id, or None, which reserves the plan.

        The reservation ends with the lease; the record takes its place.
        """
        token = self._book.token_of(variant_id)
        if token is None or self._book.leases[token].item.effort is Effort.VERIFY:
            return None
        past = self._ledger.states[self._book.leases[token].task].past
        recorded = past.owner(self._book.device_of(token), plan_hash)
        if recorded is not None:
            return None if recorded == variant_id else recorded
        return self._book.reserve(plan_hash, variant_id)

    def tell_evaluation(self, token: str, evaluation: Evaluation) -> bool:
        """Records a verdict; False if the lease is stale (it expired, or an earlier session gave it) or was reported already.

        Raises:
            ValueError: The verdict is on another variant than the leased one.
        """
        return self.tell_evaluations([(token, evaluation)])[0]

    def tell_evaluations(self, verdicts: Iterable[tuple[str, Evaluation]]) -> tuple[bool, ...]:
        """Like `tell_evaluation` for several at once, in one commit."""
        batch: list[Entry] = []
        fresh: list[bool] = []
        verdicts = tuple(verdicts)
        for token, evaluation in verdicts:
            lease = self._book.leases.get(token)
            if lease is not None and lease.item.variant.variant_id != evaluation.variant_id:
                raise ValueError(
                    f"lease {token}: given a verdict on {evaluation.variant_id}, not on {lease.item.variant.variant_id}"
                )
        for token, evaluation in verdicts:
            rivals = self._book.others(token) if token in self._book.leases else ()
            lease = self._book.close(token)
            # Judged beside nothing, while another module became the baseline: it is handed out again, to be compared with that.
            outdated = lease is not None and self._outdated(lease, evaluation)
            for rival in () if outdated else rivals:
                self._book.close(rival)
            if outdated and lease is not None:
                self._waiting.add(lease.item.number, lease.task)
            fresh.append(lease is not None and not outdated)
            if lease is not None and not outdated:
                purpose = Purpose.VERIFY if lease.item.effort is Effort.VERIFY else Purpose.SEARCH
                batch.extend(self._ledger.apply(EvaluationEntry(lease.item.number, purpose, evaluation)))
                if purpose is Purpose.SEARCH and evaluation.status is Status.PASSED:
                    self._outcomes.passed(lease.item.variant)
        self._ledger.record(batch)
        return tuple(fresh)

    def together(self) -> AbstractContextManager[None]:
        """Records all that a block asks and tells in one commit, at its end; what it is given must not be handed out before."""
        return self._ledger.together()

    # ---- lost work

    def expire(self) -> None:
        """Takes back all work whose holder did not renew it in time, and proposals that are out long after the time of the run is up."""
        self._lost.expire()

    def give_back(self, work: int | str, reason: str = "its holder was lost") -> bool:
        """Takes back a proposal (by number) or an evaluation (by token) that was not done; it is handed out again.

        After `max_attempts` holders were lost over it, the work itself is recorded as failed. False if it was not out.
        """
        return self._lost.give_back(work, reason)

    def cannot_pay(self, number: int, reason: str) -> None:
        """There is no money for a proposal, nor for any other: it is left for a later session, and counts against nothing.

        Nothing more is proposed; what was proposed is evaluated, and elites are verified.
        """
        self._ledger.meter.refused = self._ledger.meter.refused or reason
        if number in self._book.loans:
            self._lost.leave(number)

    def spend_up_to(self, dollars: float, tokens: int) -> None:
        """Notes what models have cost or may yet cost in all; a rise is recorded before this returns.

        To be called before a request to a model is sent. Whatever is killed then, what recorded exchanges do not account for is held,
        and counts as spent.
        """
        self._ledger.spend_up_to(dollars, tokens)

    def quarantine(self, reason: str) -> None:
        """Records that a device is used no more, and why."""
        self._ledger.commit([Event(EventKind.QUARANTINED, "", 0, "", "", reason)])

    def note(self, happened: str) -> None:
        """Records what happened to the cluster, for whoever asks later how the run went."""
        self._ledger.commit([Event(EventKind.CLUSTER, "", 0, "", "", happened)])

    @property
    def events(self) -> tuple[Event, ...]:
        """All that was recorded of the run besides requests, outcomes and verdicts."""
        return self._ledger.events

    def note_batch(self, event: Event) -> None:
        """Records what was sent to a model and will be answered later, whoever is there then."""
        self._ledger.commit([event])

    # ---- the run

    def stop(self, reason: str) -> None:
        """Hands out nothing any more; what is out may still be told. A later session goes on."""
        if not self._stopped:
            self._stopped = reason
            self._ledger.commit([Event(EventKind.STOPPED, "", 0, "", "", reason)])

    @property
    def finished(self) -> str | None:
        """Why the run has ended, once nothing is out and the elites are verified; None while it goes on."""
        self.expire()
        if not self._book.idle:
            return None
        if self._stopped or self.failure is not None:
            return self._stopped or str(self.failure)
        if not self._schedule.verifying or any(to_verify(state) for state in self._ledger.states.values()):
            return None
        return self._schedule.search_over

    @property
    def failure(self) -> TaskError | None:
        """Set where the starting kernels of some tasks all failed, once that is known of every task; nothing is handed out then."""
        waits = any(state.undecided for state in self._ledger.states.values())
        if not self._failures or (waits and not self._stopped and self._ledger.meter.time_is_up is None):
            return None
        return TaskErrors.of(self._failures)

    @property
    def device(self) -> str:
        """The device model that recorded verdicts are of; empty while there are none. Verdicts of two do not compare."""
        return self._ledger.device

    @property
    def spent(self) -> Spent:
        """What has been used by now, over all sessions; `evaluations` are those of the search."""
        return self._ledger.meter.spent

    def best(self, task: str) -> Parent | None:
        """The best variant of a task (by verified fitness, where there is one); None before its baseline is known."""
        state = self._ledger.states[task]
        note = state.best()
        return None if note is None else state.archive.parent(note.variant_id)

    def front(self, task: str) -> tuple[Parent, ...]:
        """The Pareto front of a task, fastest first."""
        state = self._ledger.states[task]
        points = sorted(state.front.points, key=lambda point: point.values)
        return tuple(state.archive.parent(point.variant_id) for point in points)

    def progress(self) -> Progress:
        """Figures for displays."""
        phase = "verify" if self._schedule.verifying else "search" if self._ledger.meter.begun else "starting evaluators"
        phase = "finished" if self.finished else phase
        return progress_of(self._ledger, len(self._book.leases), len(self._book.loans), phase)

    @property
    def _failures(self) -> list[TaskError]:
        return [state.failure for state in self._ledger.states.values() if state.failure is not None]

    def _outdated(self, lease: Lease, evaluation: Evaluation) -> bool:
        state = self._ledger.states[lease.task]
        alone = lease.item.baseline is None and not state.archive[evaluation.variant_id].is_start
        return alone and state.baseline is not None and evaluation.status is Status.PASSED

    def _work(self, request: Request) -> ProposalWork:
        state, info = self._ledger.states[request.task], self._operators.get(request.operator)
        others = [other for other in self._ledger.states.values() if other is not state]
        examples = examples_for(state, request, others) if info is not None and info.needs_model else ()
        return proposal_work(state, request, self._ledger.seed, examples)

    def _matches(self, operator: str, needs_model: bool | None) -> bool:
        info = self._operators.get(operator)
        return needs_model is None or info is None or info.needs_model == needs_model
