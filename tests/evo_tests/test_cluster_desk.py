"""The desk between workers and engine: one commit for all that came meanwhile, and nothing is answered before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from evo.cluster.desk import Desk
from evo.errors import StoreFullError
from evo.evaluation.simulated import SimulatedEvaluator
from evo.records import Spent
from evo.search.engine import Engine
from evo.search.leases import Lease
from evo.search.settings import Budget, SearchSettings
from evo.search.toy import infos, toy_setup
from population_store.base import Entry, PopulationStore, RunHeader
from population_store.opening import open_store
from tests.evo_tests.test_search_engine import propose


class Watched:
    """Counts commits of a store; from a certain one on there is no space."""

    def __init__(self, store: PopulationStore) -> None:
        self.commits = 0
        self.full = False
        self._record = store.record
        store.record = self.record  # type: ignore[method-assign]

    def record(self, entries: Sequence[Entry], spent: Spent) -> tuple[bool, ...]:
        self.commits += 1
        if self.full:
            raise StoreFullError("the disk is full")
        return self._record(entries, spent)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PopulationStore]:
    header = RunHeader("desk", 1, "{}", "{}", "{}", "2026-01-01T00:00:00+00:00")
    with open_store(str(tmp_path / "run.sqlite"), header=header) as opened:
        yield opened


class Office:
    """A desk with an engine whose start has been evaluated."""

    def __init__(self, store: PopulationStore, evaluations: int = 200) -> None:
        self.evaluator = SimulatedEvaluator(3, failure_rate=0.0)
        self.engine = Engine(
            seed=7,
            settings=SearchSettings(pending_limit=64),
            budget=Budget(evaluations=evaluations),
            tasks=(toy_setup(),),
            operators=infos(),
            store=store,
            clock=lambda: 0.0,
        )
        self.failures: list[Exception] = []
        self.desk = Desk(self.engine, lambda: bool(self.failures) or self.engine.finished is not None, self.failures.append)
        self.engine.tell_evaluations(self.judged(self.engine.ask_evaluations(1)))
        self.watched = Watched(store)

    def judged(self, leases: Sequence[Lease]) -> list[tuple[str, Any]]:
        return [(lease.token, self.evaluator.evaluate(lease.item, self.engine.claim)) for lease in leases]

    async def leases(self, count: int) -> Sequence[Lease]:
        """So many evaluations, of as many proposals."""
        works = (await self.desk.proposals("p", lambda: self.engine.ask_proposals(count), 5.0)).items
        await self.desk.outcomes([(work.request.number, propose(work)) for work in works])
        return (await self.desk.evaluations("e", self.take(count), 5.0)).items

    def take(self, count: int) -> Callable[[], Sequence[Lease]]:
        return lambda: self.engine.ask_evaluations(count, "simulated")


def test_what_many_workers_tell_at_once_is_one_commit(store: PopulationStore) -> None:
    async def day() -> None:
        office = Office(store)
        verdicts = office.judged(await office.leases(20))
        before = office.watched.commits
        told = await asyncio.gather(*(office.desk.verdicts([verdict]) for verdict in verdicts))
        assert told == [(True,)] * len(verdicts)
        assert len(verdicts) > 10
        assert office.watched.commits == before + 1
        assert store.spent.evaluations == 1 + len(verdicts), "and it is in the store when they are answered"
        assert await office.desk.verdicts(verdicts) == (False,) * len(verdicts)

    asyncio.run(day())


def test_work_is_handed_out_when_the_decision_behind_it_is_recorded(store: PopulationStore) -> None:
    async def day() -> None:
        office = Office(store)
        answer = await office.desk.proposals("p", lambda: office.engine.ask_proposals(3), 5.0)
        assert {work.request for work in answer.items} <= {entry for _, entry in store.journal()}

    asyncio.run(day())


def test_who_waits_is_served_in_turn_as_soon_as_there_is_work(store: PopulationStore) -> None:
    async def day() -> None:
        office = Office(store)
        assert (await office.desk.evaluations("early", office.take(1), 0.01)).items == ()
        waiting = [asyncio.create_task(office.desk.evaluations(f"e{place}", office.take(1), 600.0)) for place in range(3)]
        await asyncio.sleep(0)
        works = office.engine.ask_proposals(2)
        await office.desk.outcomes([(work.request.number, propose(work)) for work in works])
        await asyncio.wait(waiting[:2], timeout=30.0)
        assert [task.done() for task in waiting] == [True, True, False]
        office.desk.dismiss("e2")
        assert (await waiting[2]).done
        assert (await office.desk.evaluations("e2", office.take(1), 30.0)).done

    asyncio.run(day())


def test_a_full_disk_is_told_to_whoever_tells_and_ends_the_waiting(store: PopulationStore) -> None:
    async def day() -> None:
        office = Office(store)
        verdicts = office.judged(await office.leases(4))
        waiting = asyncio.create_task(office.desk.evaluations("idle", office.take(9), 30.0))
        await asyncio.sleep(0.01)
        office.watched.full = True
        told = await asyncio.gather(*(office.desk.verdicts([item]) for item in verdicts), return_exceptions=True)
        assert [type(item) for item in told] == [StoreFullError] * len(verdicts)
        assert (await waiting).done
        assert len(office.failures) == 1
        assert store.spent.evaluations == 1

    asyncio.run(day())


def test_everybody_goes_home_when_the_run_has_ended(store: PopulationStore) -> None:
    async def day() -> None:
        office = Office(store)
        waiting = [asyncio.create_task(office.desk.evaluations(f"e{place}", office.take(1), 30.0)) for place in range(2)]
        await asyncio.sleep(0.01)
        office.engine.stop("enough")
        office.desk.ring()
        assert [answer.done for answer in await asyncio.gather(*waiting)] == [True, True]

    asyncio.run(day())
