"""What a long run costs: no more per variant than a short one, and resuming it is neither slow nor another search."""

from __future__ import annotations

import dataclasses
import shutil
import sqlite3
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from sqlalchemy import event

from evo.evaluation.simulated import SimulatedEvaluator
from evo.records import EventKind, NoProposal, Proposal
from evo.search import snapshots
from evo.search.bandit import Bandit
from evo.search.engine import Engine, ProposalWork
from evo.search.freezing import freeze, thaw
from evo.search.settings import Budget, SearchSettings
from evo.search.toy import DRIFT_OPERATORS, infos, toy_setup
from population_store.base import PopulationStore, RunHeader
from population_store.opening import open_store
from population_store.sql import SqlStore

OPERATORS = {operator.name: operator for operator in DRIFT_OPERATORS}
SETTINGS = SearchSettings(islands=2, island_capacity=8, migration_interval=6, pending_limit=16, verify_elites=2)
HEADER = RunHeader("scale", 1, "{}", "{}", "{}", "2026-01-01T00:00:00+00:00")


def engine_on(store: PopulationStore, evaluations: int) -> Engine:
    return Engine(
        seed=5,
        settings=SETTINGS,
        budget=Budget(evaluations=evaluations),
        tasks=(toy_setup(),),
        operators=infos(DRIFT_OPERATORS),
        store=store,
        clock=lambda: 0.0,
    )


def propose(work: ProposalWork) -> Proposal | NoProposal:
    coroutine = OPERATORS[work.request.operator].propose(work.parents, work.context, np.random.default_rng(work.seed))
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: Proposal | NoProposal = done.value
        return result
    raise AssertionError("a toy operator waits for nothing")


def turn(engine: Engine, evaluator: SimulatedEvaluator) -> None:
    engine.tell_proposals([(work.request.number, propose(work)) for work in engine.ask_proposals(4)])
    leases = engine.ask_evaluations(4, evaluator.device)
    engine.tell_evaluations([(lease.token, evaluator.evaluate(lease.item, engine.claim)) for lease in leases])


def history(path: Path) -> list[Any]:
    with open_store(str(path)) as store:
        return [entry for _, entry in store.journal() if getattr(entry, "kind", None) is not EventKind.RESUMED]


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot after every few entries."""
    monkeypatch.setattr(snapshots, "ENTRIES", 60)
    monkeypatch.setattr(snapshots, "PER_VARIANT", 0)


def test_a_search_resumed_from_snapshots_is_the_same_search(tmp_path: Path, often: None) -> None:
    evaluator = SimulatedEvaluator(3, failure_rate=0.5)
    whole, cut = tmp_path / "whole.sqlite", tmp_path / "cut.sqlite"
    with open_store(str(whole), header=HEADER) as store:
        engine = engine_on(store, 120)
        while engine.finished is None:
            turn(engine, evaluator)
    open_store(str(cut), header=HEADER).close()
    sessions, ended = 0, None
    while ended is None:
        with open_store(str(cut), write=True) as store:
            engine = engine_on(store, 120)
            for _ in range(11):
                turn(engine, evaluator)
            ended, sessions = engine.finished, sessions + 1
            kept = store.kept(snapshots.NAME)
    assert history(cut) == history(whole)
    assert sessions > 3
    assert kept is not None
    assert kept.seq > 240


def test_a_snapshot_and_what_followed_give_the_state_that_the_whole_journal_gives(tmp_path: Path, often: None) -> None:
    evaluator = SimulatedEvaluator(3, failure_rate=0.5)
    path, bare = tmp_path / "run.sqlite", tmp_path / "bare.sqlite"
    with open_store(str(path), header=HEADER) as store:
        engine = engine_on(store, 150)
        for _ in range(40):
            turn(engine, evaluator)
        engine.ask_proposals(3)
    shutil.copy(path, bare)
    with sqlite3.connect(bare) as opened:
        assert opened.execute("DELETE FROM snapshots").rowcount == 1
    opened.close()
    frozen = []
    for place in (path, bare):
        with open_store(str(place), write=True) as store:
            ledger = engine_on(store, 150)._ledger
            for state in ledger.states.values():
                state.forget()
            frozen.append(freeze(ledger))
    assert frozen[0] == frozen[1]


def test_numbers_of_numpy_in_a_verdict_do_not_end_a_run_at_its_first_snapshot() -> None:
    bandit, same = Bandit(0.1, 50), Bandit(0.1, 50)
    bandit.learn("widen", np.float64(0.5))
    same.learn("widen", 0.5)
    assert freeze(bandit) == freeze(same)


def test_a_snapshot_that_does_not_fit_or_is_damaged_is_not_used(tmp_path: Path, often: None) -> None:
    with open_store(str(tmp_path / "run.sqlite"), header=HEADER) as store:
        engine = engine_on(store, 100)
        for _ in range(20):
            turn(engine, SimulatedEvaluator(3))
        kept = store.kept(snapshots.NAME)
        assert kept is not None
        for key, text in (("of another version", kept.text.replace("toy_drift", "unheard")), (kept.key, kept.text[:-900] + "}")):
            store.keep(snapshots.NAME, key, text)
            again = engine_on(store, 100)
            assert {item.operator for item in again.progress().operators} <= set(OPERATORS)
            assert again.progress().tasks == engine.progress().tasks


def test_settings_that_only_decide_leave_a_snapshot_useful(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "run.sqlite"), header=HEADER) as store:

        def key(settings: SearchSettings) -> str:
            return snapshots.Snapshots(store, _Owner(), settings, (toy_setup(),), ()).key

        assert key(dataclasses.replace(SETTINGS, stall_limit=3)) == key(SETTINGS)
        assert key(dataclasses.replace(SETTINGS, island_capacity=9)) != key(SETTINGS)


def test_text_that_is_no_state_is_refused() -> None:
    with pytest.raises(ValueError, match="not the state of a"):
        thaw(SETTINGS_OWNER, '{"unheard": 1}', ())


class _Owner:
    KEPT = ("count",)
    count = 0


SETTINGS_OWNER = _Owner()


class Steps:
    """Counts what the interpreter does and what the database is asked: the same on any machine, however busy."""

    def __init__(self, store: PopulationStore) -> None:
        assert isinstance(store, SqlStore)
        self.opcodes = self.statements = 0
        for engine in (store._database.reader, store._database.writer):
            assert engine is not None
            event.listen(engine, "before_cursor_execute", self._asked)

    def _asked(self, *given: object) -> None:
        self.statements += 1

    def __enter__(self) -> Steps:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, what: str, argument: object) -> Any:
        if what == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif what == "opcode":
            self.opcodes += 1
        return self._trace


def test_a_variant_costs_no_more_late_in_a_run_than_early(tmp_path: Path) -> None:
    evaluator = SimulatedEvaluator(3, failure_rate=0.2)
    with open_store(str(tmp_path / "run.sqlite"), header=HEADER) as store:
        engine, costs = engine_on(store, 10_000), []
        for begin in (60, 400):
            while engine.spent.evaluations < begin:
                turn(engine, evaluator)
            steps, before = Steps(store), engine.spent.evaluations
            with steps:
                for _ in range(8):
                    turn(engine, evaluator)
            done = engine.spent.evaluations - before
            costs.append((steps.opcodes / done, steps.statements / done))
    (early, asked_early), (late, asked_late) = costs
    assert late < 1.3 * early, f"steps of the interpreter per variant: {early:.0f} at 60 variants, {late:.0f} at 400"
    assert asked_late < 1.3 * asked_early, f"statements per variant: {asked_early:.1f} at 60, {asked_late:.1f} at 400"
