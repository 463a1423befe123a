"""Where workers hand in results and wait for work: all that came meanwhile is done in one turn, with one commit."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from evo.cluster.spec import Answer
from evo.records import Evaluation, NoProposal, Proposal
from evo.search.engine import Engine, ProposalWork
from evo.search.leases import Lease

T = TypeVar("T")


@dataclass
class _Waiter(Generic[T]):
    """A worker that asked, how it takes work, and what it is answered."""

    worker: str
    take: Callable[[], Sequence[T]]
    answer: asyncio.Future[Answer[T]]


@dataclass
class _Line(Generic[T]):
    """Who waits for one kind of work, in the order they came."""

    waiters: deque[_Waiter[T]] = field(default_factory=deque)

    def serve(self, *, everyone: bool) -> list[tuple[_Waiter[T], Answer[T]]]:
        """Hands out work, in turn: until there is none for the first who waits, or to everyone there is some for."""
        served: list[tuple[_Waiter[T], Answer[T]]] = []
        waiting: deque[_Waiter[T]] = deque()
        while self.waiters:
            waiter = self.waiters.popleft()
            if waiter.answer.done():
                continue
            items = tuple(waiter.take())
            if items:
                served.append((waiter, Answer(items)))
            else:
                waiting.append(waiter)
                if not everyone:
                    break
        self.waiters.extendleft(reversed(waiting))
        return served

    def dismiss(self, worker: str | None) -> None:
        """Tells one worker, or all, that there is no more work."""
        for waiter in self.waiters:
            if worker in (None, waiter.worker):
                _give(waiter.answer, Answer(done=True))


class Desk:
    """Belongs to the engine's event loop. A turn is taken as soon as the loop is free after something came, so that under load there
    are fewer and larger commits, and with little to do an answer waits for nobody.

    Args:
        engine: What is asked and told.
        ended: Whether there is no more work for anybody.
        failed: Called with what made a turn fail: nothing of it was recorded, nothing will be.
    """

    def __init__(self, engine: Engine, ended: Callable[[], bool], failed: Callable[[Exception], None]) -> None:
        self._engine = engine
        self._ended = ended
        self._failed = failed
        self._dismissed: set[str] = set()
        self._evaluators: _Line[Lease] = _Line()
        self._proposers: _Line[ProposalWork] = _Line()
        self._verdicts: list[tuple[Sequence[tuple[str, Evaluation]], asyncio.Future[tuple[bool, ...]]]] = []
        self._outcomes: list[tuple[Sequence[tuple[int, Proposal | NoProposal]], asyncio.Future[tuple[bool, ...]]]] = []
        self._planned = False
        self._everyone = False

    async def verdicts(self, verdicts: Sequence[tuple[str, Evaluation]]) -> tuple[bool, ...]:
        """See `Engine.tell_evaluations`; returns when they are recorded."""
        return await self._tell(self._verdicts, verdicts)

    async def outcomes(self, outcomes: Sequence[tuple[int, Proposal | NoProposal]]) -> tuple[bool, ...]:
        """See `Engine.tell_proposals`; returns when they are recorded."""
        return await self._tell(self._outcomes, outcomes)

    async def evaluations(self, worker: str, take: Callable[[], Sequence[Lease]], wait_s: float) -> Answer[Lease]:
        """What `take` gives, as soon as it gives something; empty after `wait_s` seconds."""
        return await self._wait(self._evaluators, worker, take, wait_s)

    async def proposals(self, worker: str, take: Callable[[], Sequence[ProposalWork]], wait_s: float) -> Answer[ProposalWork]:
        """The same for proposals."""
        return await self._wait(self._proposers, worker, take, wait_s)

    def dismiss(self, worker: str) -> None:
        """A worker gets no more work."""
        self._dismissed.add(worker)
        for line in (self._evaluators, self._proposers):
            line.dismiss(worker)

    def ring(self, *, everyone: bool = False) -> None:
        """Something changed that who waits may have waited for.

        Args:
            everyone: It may be for one of them only, and so everyone is asked, not just who waits longest.
        """
        self._everyone |= everyone
        if not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_soon(self._turn)

    async def _tell(
        self, told: list[tuple[Sequence[T], asyncio.Future[tuple[bool, ...]]]], items: Sequence[T]
    ) -> tuple[bool, ...]:
        answer: asyncio.Future[tuple[bool, ...]] = asyncio.get_running_loop().create_future()
        told.append((items, answer))
        self.ring()
        return await answer

    async def _wait(self, line: _Line[T], worker: str, take: Callable[[], Sequence[T]], wait_s: float) -> Answer[T]:
        if worker in self._dismissed:
            return Answer(done=True)
        waiter = _Waiter(worker, take, asyncio.get_running_loop().create_future())
        line.waiters.append(waiter)
        self.ring()
        await asyncio.wait((waiter.answer,), timeout=wait_s)
        _give(waiter.answer, Answer())
        return waiter.answer.result()

    def _turn(self) -> None:
        self._planned = False
        everyone, self._everyone = self._everyone, False
        verdicts, self._verdicts = self._verdicts, []
        outcomes, self._outcomes = self._outcomes, []
        leases: list[tuple[_Waiter[Lease], Answer[Lease]]] = []
        works: list[tuple[_Waiter[ProposalWork], Answer[ProposalWork]]] = []
        try:
            with self._engine.together():
                judged = iter(self._engine.tell_evaluations([item for items, _ in verdicts for item in items]))
                proposed = iter(self._engine.tell_proposals([item for items, _ in outcomes for item in items]))
                ended = self._ended()
                if not ended:
                    leases = self._evaluators.serve(everyone=everyone)
                    works = self._proposers.serve(everyone=everyone)
        except Exception as error:  # noqa: BLE001  whoever waits for it has to hear of it, and the driver
            for told in (*(answer for _, answer in verdicts), *(answer for _, answer in outcomes)):
                if not told.done():
                    told.set_exception(error)
            for lease_waiter, _ in leases:
                _give(lease_waiter.answer, Answer(done=True))
            for work_waiter, _ in works:
                _give(work_waiter.answer, Answer(done=True))
            self._failed(error)
            ended = True
        else:
            for items, answer in verdicts:
                _give(answer, tuple(next(judged) for _ in items))
            for told_items, answer in outcomes:
                _give(answer, tuple(next(proposed) for _ in told_items))
            for lease_waiter, lease_answer in leases:
                _give(lease_waiter.answer, lease_answer)
            for work_waiter, work_answer in works:
                _give(work_waiter.answer, work_answer)
        if ended:
            for line in (self._evaluators, self._proposers):
                line.dismiss(None)


def _give(answer: asyncio.Future[Any], value: object) -> None:
    """Gives an answer, unless there is one, or who asked has gone."""
    if not answer.done():
        answer.set_result(value)
