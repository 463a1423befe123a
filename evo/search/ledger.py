"""The one place where entries enter the store and the state: in a replay and live, by the same path."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar

from evo.errors import StoreError
from evo.records import Event, EventKind, Proposal, Request
from evo.search.allowed import Limits, began_with, budget_event, limits_of, recorded
from evo.search.archive import START
from evo.search.bandit import Bandit
from evo.search.budget import Meter
from evo.search.consequences import due
from evo.search.digest import Digest
from evo.search.model_mix import ModelBandit, ModelMix
from evo.search.settings import Budget, SearchSettings
from evo.search.setup import OperatorInfo, TaskSetup
from evo.search.snapshots import Snapshots
from evo.search.state import TaskState
from population_store.base import Entry, EvaluationEntry, OutcomeEntry, PopulationStore, Purpose

_OF_NO_TASK = frozenset({EventKind.STOPPED, EventKind.PROPOSED, EventKind.EVALUATED, EventKind.CLUSTER, EventKind.BATCH})
"""Ends of sessions, what happened to the cluster and batches under way, which change nothing."""


class Ledger:
    """State of all tasks, built from the store's journal and kept in step with it.

    A batch of entries and all that follows from them (abandoned lineages, restarts, migrations) is one commit. It is applied to
    the state first, because the consequences depend on it; when the store then refuses it, the ledger refuses everything from
    there on, so that nothing is ever acted on that is not in the store. What is in the store is found again by a new ledger.

    Args:
        seed, settings, budget, tasks, operators, models, store, clock: As for `evo.search.engine.Engine`.
    """

    KEPT: ClassVar = ("meter", "epoch", "next_number", "device", "_tasks", "_quarantined", "_allowed", "_owned")

    def __init__(
        self,
        *,
        seed: int,
        settings: SearchSettings,
        budget: Budget,
        tasks: Sequence[TaskSetup],
        operators: Sequence[OperatorInfo],
        models: Sequence[str],
        store: PopulationStore,
        clock: Callable[[], float],
    ) -> None:
        self.meter = Meter(budget, clock)
        self.epoch = 0
        self.next_number = 0
        self.device = ""
        self.seed = seed
        self.operators = tuple(operators)
        self._store = store
        self._refused: BaseException | None = None
        self._together: list[Entry] | None = None
        self._tasks: dict[int, str] = {}  # of requests that may yet get an outcome or a verdict of the search
        self._quarantined: dict[str, None] = {}
        self._allowed: Limits | None = began_with(store.header)
        kinds = sorted({setup.task.kind for setup in tasks})
        earlier = {setup.task.kind: setup.earlier for setup in tasks}
        self.bandits = {kind: Bandit(settings.bandit_floor, settings.bandit_memory, earlier[kind]) for kind in kinds}
        self.model_bandits = {kind: ModelBandit(settings.bandit_floor, settings.bandit_memory) for kind in kinds}
        self.states = {setup.task.name: self._state(setup, settings, models) for setup in tasks}
        if len(self.states) != len(tasks):
            raise ValueError(f"tasks must differ in name, given {', '.join(setup.task.name for setup in tasks)}")
        self._owned = [*self.bandits.values(), *self.model_bandits.values(), *self.states.values()]
        self._snapshots = Snapshots(store, self, settings, tasks, models)
        self._digest = Digest(store)
        self._replay()

    def _state(self, setup: TaskSetup, settings: SearchSettings, models: Sequence[str]) -> TaskState:
        kind = setup.task.kind
        mix = ModelMix(models, self.model_bandits[kind], settings.operator_failure_limit)
        return TaskState(setup, settings, self.bandits[kind], mix, self._store)

    def state_of(self, number: int) -> TaskState | None:
        """The state of the task that a request belongs to; None for an unknown number."""
        task = self._tasks.get(number)
        return None if task is None else self.states[task]

    @property
    def events(self) -> tuple[Event, ...]:
        """All events that the store has."""
        return self._store.events()

    @property
    def pending(self) -> int:
        """Requests without an outcome and variants without an evaluation, over all tasks."""
        return sum(state.pending for state in self.states.values())

    def commit(self, entries: Iterable[Entry]) -> None:
        """Applies and records entries with all that follows from them.

        Raises:
            StoreError: The store refused; the ledger cannot be used any more.
        """
        self.record([done for entry in entries for done in self.apply(entry)])

    def apply(self, entry: Entry) -> list[Entry]:
        """Applies one entry and what follows from it; the caller records what is returned before it acts on it."""
        self.check()
        done: list[Entry] = [entry]
        try:
            state = self._change(entry)
            while state is not None and (events := due(state, self.seed, self.operators)):
                for event in events:
                    self._change(event)
                done.extend(events)
            known = isinstance(entry, OutcomeEntry) and state is not None and entry.number not in state.awaiting
            for item in done:
                self._digest.see(item, repeated=known and item is entry)
        except BaseException as error:
            self._refused = error
            raise
        return done

    def record(self, batch: Sequence[Entry]) -> None:
        """Records applied entries in one commit; within `together`, at the end of that."""
        self.check()
        if self._together is not None:
            self._together.extend(batch)
        elif batch:
            self._write(batch)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Records all of a block in one commit at its end; nothing of it is to be acted on before.

        Raises:
            StoreError: The store refused, or the block failed after something was applied; the ledger cannot be used any more.
        """
        self.check()
        self._together = []
        try:
            yield
            batch, self._together = self._together, None
            self.record(batch)
        except BaseException as error:
            if self._together:
                self._refused = error
            raise
        finally:
            self._together = None

    def spend_up_to(self, dollars: float, tokens: int) -> None:
        """Models may have cost so much in all; where it is more than the store knows, it does when this returns."""
        self.meter.committed_dollars, self.meter.committed_tokens = dollars, tokens
        known = self._store.spent
        if dollars > known.dollars + known.held_dollars or tokens > known.tokens + known.held_tokens:
            self._write(())

    def _write(self, batch: Sequence[Entry]) -> None:
        self.check()
        try:
            fresh = self._store.record(batch, self.meter.spent)
            if not all(fresh):
                raise StoreError("the population store holds records that this run did not make", action="resume the run")
            self._digest.keep()
            self._snapshots.applied(len(batch))
            if self._snapshots.is_due(sum(len(state.archive) for state in self.states.values())):
                self._keep()
        except BaseException as error:
            self._refused = error
            raise

    def check(self) -> None:
        """Raises StoreError if a record was applied but not stored: the state then holds what the store lacks."""
        if self._refused is not None:
            raise StoreError("an earlier record did not reach the population store", action="resume the run") from self._refused

    def _keep(self) -> None:
        """Writes a snapshot. Everything applied must be recorded."""
        for state in self.states.values():
            state.forget()
        if all(state.failure is None for state in self.states.values()):  # such a run ends soon
            self._moved(self._snapshots.keep())

    def _moved(self, up_to: int) -> None:
        for state in self.states.values():
            state.past.moved(up_to)

    def _change(self, entry: Entry) -> TaskState | None:
        """Applies an entry; the state of the task where something may follow from it."""
        if isinstance(entry, Event):
            self._event(entry)
        elif isinstance(entry, Request):
            self._known(entry.task).apply_request(entry)
            self._tasks[entry.number] = entry.task
            self.next_number = max(self.next_number, entry.number + 1)
        elif isinstance(entry, OutcomeEntry):
            state = self._known(self._tasks[entry.number])
            self.meter.proposals += state.proposing[entry.number].operator != START
            self.meter.pay(entry.outcome.exchanges)
            state.apply_outcome(entry)
            if entry.number not in state.awaiting:
                del self._tasks[entry.number]
            return state
        elif isinstance(entry, EvaluationEntry):
            return self._evaluated(entry)
        return None

    def _evaluated(self, entry: EvaluationEntry) -> TaskState | None:
        self.meter.evaluated(entry.evaluation.gpu_s, searched=entry.purpose is Purpose.SEARCH)
        self.device = self.device or entry.evaluation.device
        if entry.purpose is Purpose.SEARCH:
            self.meter.evaluations += 1
            state: TaskState | None = self._known(self._tasks.pop(entry.number))
        else:  # of an elite, which its task still holds, unless it has left the front meanwhile
            held = (item for item in self.states.values() if entry.evaluation.variant_id in item.archive)
            state = next(held, None)
        if state is not None:
            state.apply_evaluation(entry)
        return state

    def _event(self, event: Event) -> None:
        if event.kind is EventKind.RESUMED:
            self.epoch += 1
            for state in self.states.values():
                state.exhaustion.new_session()
                state.mix.new_session()
        elif event.kind is EventKind.QUARANTINED:
            self._quarantined[event.reason] = None
        elif event.kind is EventKind.BUDGET:
            self._allowed = recorded(event)
        elif event.kind not in _OF_NO_TASK:
            if event.kind is EventKind.WORKER_LOST:  # what it used is not known
                self.meter.evaluated(self.meter.dearest_gpu_s or 0.0, searched=False)
            self._known(event.task).apply_event(event)

    def _known(self, task: str) -> TaskState:
        if task not in self.states:
            raise StoreError("population store: holds a task this run lacks", given=task, allowed=list(self.states))
        return self.states[task]

    def _replay(self) -> None:
        begin = last = self._snapshots.restore()
        self._moved(begin)
        self._digest.follow()
        for last, entry in self._store.journal(begin):  # noqa: B007 (the last number tells whether there was any)
            self._change(entry)
        if last:
            self._snapshots.applied(last - begin)
            self._moved(last)
            self.meter.resume(self._store.spent)
            again = "; ".join(self._quarantined)
            text = f"session {self.epoch + 2} of this run" + (
                f"; in quarantine before, and tried again: {again}" if again else ""
            )
            self.commit([Event(EventKind.RESUMED, "", 0, "", "", text)])
            if self._allowed is not None and limits_of(self.meter.budget) != self._allowed:
                self.commit([budget_event(self.meter.budget)])
        for state in self.states.values():
            if not state.requests:
                self._start(state)
            while events := due(state, self.seed, self.operators):
                self.commit(events)

    def _start(self, state: TaskState) -> None:
        """Brings in the starting kernels of a task that the journal does not know yet."""
        entries: list[Entry] = []
        for place, variant in enumerate(dict.fromkeys(state.setup.starts)):
            number = self.next_number + place
            entries.append(Request(number, state.name, 0, f"{state.name}/0/{place}", START, ()))
            entries.append(OutcomeEntry(number, Proposal(variant.source, "starting kernel"), variant))
        self.commit(entries)
