"""The one process that decides and records: owner of the store, the engine and the leases; everyone else asks it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

from evo.cluster.desk import Desk
from evo.cluster.holdings import Holdings
from evo.cluster.processes import die_with_parent, forget_keys
from evo.cluster.setup import operator_infos, task_setups
from evo.cluster.spec import Answer, RunSpec
from evo.cluster.spending import Spending
from evo.records import Evaluation, NoProposal, Proposal
from evo.search.engine import Engine, ProposalWork
from evo.search.leases import Lease
from evo.search.progress import Progress
from evo.search.setup import OperatorInfo, TaskSetup
from population_store.base import PopulationStore
from population_store.opening import open_store

TICK_S = 0.5
"""How often leases and the wall-clock budget are looked at."""


class EngineActor:
    """Runs as an asyncio Ray actor: every call to the engine happens on one event loop, so the engine needs no lock.

    Requests for work are held open until there is some (long polling). Where recording fails (a full disk), workers are told that
    there is no more work, and `progress` raises what failed in the driver.
    """

    def __init__(self, spec: RunSpec) -> None:
        die_with_parent()
        forget_keys(spec.config)
        self._spec = spec
        self._failure: Exception | None = None
        self._holdings = Holdings(time.monotonic)
        self._works: dict[str, set[int]] = defaultdict(set)
        self._blameless: deque[Lease] = deque()
        self._delivered: dict[str, int] = defaultdict(int)
        self._device = spec.config.cluster.device_model or ""

    async def open(self) -> Progress:
        """Opens the store (creating it where the spec has a header) and starts or resumes the engine.

        Raises:
            InputError: The store or a task cannot be used.
        """
        config = self._spec.config
        tasks, operators = self._setups()
        self._store: PopulationStore = open_store(self._spec.store, write=True, header=self._spec.header)
        self._engine = Engine(
            seed=config.seed,
            settings=config.search,
            budget=config.budget,
            tasks=tasks,
            operators=operators,
            store=self._store,
            clock=time.monotonic,
            models=list(config.model_labels),
        )
        self._spending = Spending(
            config, self._engine.spent, self._engine.spend_up_to, self._engine.events, self._engine.note_batch
        )
        self._desk = Desk(self._engine, self._ended, self._failed)
        self._ticker = asyncio.create_task(self._tick())
        return self._engine.progress()

    def _setups(self) -> tuple[tuple[TaskSetup, ...], tuple[OperatorInfo, ...]]:
        """What the run is about."""
        return task_setups(self._spec.config), operator_infos(self._spec.config)

    async def ask_proposals(self, worker: str, count: int, wait_s: float) -> Answer[ProposalWork]:
        """Up to `count` proposals to make, as soon as there is one; empty after `wait_s` seconds."""

        def take() -> Sequence[ProposalWork]:
            works = self._engine.ask_proposals(count)
            self._works[worker].update(work.request.number for work in works)
            return works

        return await self._desk.proposals(worker, take, wait_s)

    async def tell_proposals(self, worker: str, outcomes: Sequence[tuple[int, Proposal | NoProposal]]) -> None:
        """Records what came of requests."""
        for number, _ in outcomes:
            self._works[worker].discard(number)
        await self._desk.outcomes(outcomes)
        self._delivered[worker] += len(outcomes)

    async def cannot_pay(self, worker: str, number: int, reason: str) -> None:
        """See `evo.search.engine.Engine.cannot_pay`. A proposer that was given up is refused money for that alone, which ends nothing."""
        if number in self._works.get(worker, ()):
            self._works[worker].discard(number)
            with self._recording():
                self._engine.cannot_pay(number, reason)

    async def ask_evaluations(self, worker: str, count: int, device: str, wait_s: float) -> Answer[Lease]:
        """Up to `count` evaluations to do, as soon as there is one; empty after `wait_s` seconds.

        Where nothing else is to do, one is handed out that somebody else has been at for very long; the first verdict counts.
        An evaluator of another device model than the run's is refused: what two models take does not compare.
        """
        self._device = self._device or self._engine.device or device
        if device != self._device:
            return Answer(done=True, refused=f"this run optimises for {self._device}, this device is {device}")

        def take() -> Sequence[Lease]:
            spare = self._spare(count)
            leases = [*spare, *self._engine.ask_evaluations(count - len(spare), device)]
            if not leases:
                again = map(self._engine.lease_again, self._holdings.slow(worker))  # None: decided, but its holder is still at it
                leases = list(itertools.islice((lease for lease in again if lease is not None), 1))
            self._holdings.give(worker, leases)
            return leases

        return await self._desk.evaluations(worker, take, wait_s)

    async def tell_evaluations(self, worker: str, verdicts: Sequence[tuple[str, Evaluation]]) -> tuple[bool, ...]:
        """Records verdicts, each with the token of its lease; False where that had expired and the verdict is not needed."""
        for token, _ in verdicts:
            self._holdings.done(worker, token)
        accepted = await self._desk.verdicts(verdicts)
        self._delivered[worker] += len(verdicts)
        return accepted

    async def claims(self, plans: Sequence[tuple[str, str]]) -> tuple[str | None, ...]:
        """See `evo.evaluation.base.Claim`; several at once."""
        return tuple(self._engine.claim(plan_hash, variant_id) for plan_hash, variant_id in plans)

    async def renew(self, worker: str) -> None:
        """A sign of life: everything the worker holds stays its own for another lease."""
        self._engine.renew([*self._holdings.of(worker), *self._works[worker]])

    async def release(self, worker: str) -> None:
        """What a worker holds goes to others, and counts against nothing: the worker's device failed, not the work."""
        self._blameless.extend(self._holdings.take(worker))
        self._desk.ring()

    async def dismiss(self, worker: str) -> None:
        """A worker gets no more work: what it has in hand it still does, and then ends."""
        self._desk.dismiss(worker)

    async def note(self, happened: str) -> None:
        """Records what happened to the cluster."""
        with self._recording(ring=False):
            self._engine.note(happened)

    async def lost(self, worker: str, reason: str) -> int:
        """Called when a worker died, whose name nobody has again: what it held goes to others.

        Work is done in the order it was handed out, so of an evaluator's leases only the first counts against its variant. (Of an
        evaluator with several at a time that one may be innocent; the guilty one then comes first next time.)

        Returns:
            How many results the worker had delivered.
        """
        self._desk.dismiss(worker)  # it may only be out of reach, and ask again when it is back
        self._spending.lost(worker)
        leases = self._holdings.take(worker)
        self._blameless.extend(leases[1:])
        with self._recording():
            for lease in leases[:1]:
                self._engine.give_back(lease.token, reason)
            for number in sorted(self._works.pop(worker, set())):
                self._engine.give_back(number, reason)
        return self._delivered.pop(worker, 0)

    async def quarantine(self, worker: str, reason: str) -> None:
        """Records that a worker's device is used no more; what the worker holds goes to others and counts against nothing."""
        await self.release(worker)
        with self._recording():
            self._engine.quarantine(f"{worker}: {reason}")
        self._desk.dismiss(worker)

    async def stop(self, reason: str) -> None:
        """Hands out nothing more; results of work in hand are still recorded."""
        with self._recording():
            self._engine.stop(reason)

    async def life(self, worker: str) -> int:
        """See `evo.cluster.spending.Spending.life`."""
        return self._spending.life(worker)

    async def reserve(self, worker: str, life: int, name: str, dollars: float, tokens: int) -> str:
        """See `evo.cluster.spending.Spending.reserve`."""
        with self._recording(ring=False):
            return await self._spending.reserve(worker, life, name, dollars, tokens)

    async def settle(self, name: str, dollars: float, tokens: int) -> None:
        """See `evo.cluster.spending.Spending.settle`."""
        with self._recording(ring=False):
            self._spending.settle(name, dollars, tokens)

    async def sent(self, batch: str, requests: dict[str, str]) -> None:
        """See `evo.cluster.spending.Spending.sent`."""
        with self._recording(ring=False):
            self._spending.sent(batch, requests)

    async def regain(self, worker: str, life: int, name: str, request: str) -> tuple[str, float, int] | None:
        """See `evo.cluster.spending.Spending.regain`."""
        return self._spending.regain(worker, life, name, request)

    async def permission(self, endpoint: str, ticket: str, tokens: int) -> float:
        """See `operators.models.limits.Bucket.claim`."""
        return self._spending.permission(endpoint, ticket, tokens)

    async def pause(self, endpoint: str, seconds: float | None) -> None:
        """See `operators.models.limits.Bucket.pause`."""
        self._spending.pause(endpoint, seconds)

    async def correct(self, endpoint: str, tokens: int) -> None:
        """See `operators.models.limits.Bucket.correct`."""
        self._spending.correct(endpoint, tokens)

    async def progress(self) -> Progress:
        """For the driver's display.

        Raises:
            TaskError: No starting kernel of a task passes.
            Exception: What made recording fail.
        """
        failure = self._failure or self._engine.failure
        if failure is not None:
            raise failure
        return self._engine.progress()

    async def finished(self) -> str | None:
        """Why the run has ended; None while it goes on."""
        return self._engine.finished

    async def close(self) -> None:
        """Records why the run ended, if it did, and gives up the store."""
        self._ticker.cancel()
        try:
            reason = None if self._failure is not None else self._engine.finished
            if reason is not None:
                self._engine.stop(reason)
        finally:
            self._store.close()

    def _spare(self, count: int) -> list[Lease]:
        """Up to so many leases that lost their holders and are still wanted."""
        found: list[Lease] = []
        while self._blameless and len(found) < count:
            lease = self._blameless.popleft()
            if all(self._engine.renew([lease.token])):
                found.append(lease)
        return found

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            with contextlib.suppress(Exception), self._recording(everyone=True):  # kept in `_failure`, raised by `progress`
                self._engine.renew([lease.token for lease in self._blameless])
                self._engine.expire()

    def _ended(self) -> bool:
        return self._failure is not None or self._engine.finished is not None

    def _failed(self, error: Exception) -> None:
        self._failure = self._failure or error

    @contextlib.contextmanager
    def _recording(self, *, ring: bool = True, everyone: bool = False) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._failed(error)
            self._desk.ring()
            raise
        if ring:
            self._desk.ring(everyone=everyone)
