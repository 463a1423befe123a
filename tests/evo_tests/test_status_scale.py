"""What a look at a run costs and counts: the same whether it reads all of the journal or a digest and what followed."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from evo.evaluation.simulated import SimulatedEvaluator
from evo.records import Evaluation, EventKind, Spent, Stage, Status
from evo.reporting import status
from evo.reporting.status import RunStatus, StatusReader
from evo.search import digest
from evo.search.digest import Digest
from evo.search.engine import Engine
from evo.search.freezing import freeze
from evo.search.settings import Budget
from evo.search.toy import DRIFT_OPERATORS, infos, toy_setup
from population_store.base import EvaluationEntry, OutcomeEntry, PopulationStore, Purpose, RunHeader
from population_store.opening import open_store
from tests.evo_tests.test_search_scale import SETTINGS, Steps, turn

HEADER = RunHeader("scale", 1, "{}", '{"toy": ""}', "{}", "2026-01-01T00:00:00+00:00")


@contextlib.contextmanager
def session(path: Path, evaluations: int) -> Iterator[tuple[PopulationStore, Engine]]:
    with open_store(str(path), write=True, header=None if path.exists() else HEADER) as store:
        yield (
            store,
            Engine(
                seed=5,
                settings=dataclasses.replace(SETTINGS, stall_limit=5),
                budget=Budget(evaluations=evaluations),
                tasks=(toy_setup(),),
                operators=infos(DRIFT_OPERATORS),
                store=store,
                clock=lambda: 0.0,
            ),
        )


def without_digest(path: Path) -> Path:
    bare = path.with_name("bare.sqlite")
    shutil.copy(path, bare)
    with contextlib.closing(sqlite3.connect(bare)) as opened, opened:
        assert opened.execute("DELETE FROM snapshots WHERE name = 'status'").rowcount == 1
    return bare


def look(path: Path) -> RunStatus:
    with open_store(str(path)) as store:
        return StatusReader(store).look()


def test_a_digest_and_what_followed_tell_what_the_whole_journal_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "ENTRIES", 60)
    path, ended = tmp_path / "run.sqlite", None
    while ended is None:  # in several sessions, each cut off
        with session(path, 120) as (_, engine):
            for _ in range(15):
                turn(engine, SimulatedEvaluator(3, failure_rate=0.5))
            ended = engine.finished
    with open_store(str(path), write=True) as store:  # a cheat and an overrated one are found out
        best, second = [row for row in store.ranking("toy") if row.verify is None and row.request.parents][:2]
        caught = Evaluation(best.variant.variant_id, Status.WRONG_VALUES, Stage.VERIFY, "simulated")
        less = dataclasses.replace(second.search, fitness=0.5, checks=("memcheck",))
        verdicts = [EvaluationEntry(best.number, Purpose.VERIFY, caught), EvaluationEntry(second.number, Purpose.VERIFY, less)]
        store.record(verdicts, store.spent)
        kept, entries = store.kept(digest.NAME), list(store.journal())
    assert kept is not None
    assert 0 < len(entries) - kept.seq < 120
    found = look(path)
    assert found == look(without_digest(path))
    check_against_the_journal(path, found)
    assert found.given_up.restarts > digest.SHOWN_FAULTS
    assert found.given_up.better > 0


def check_against_the_journal(path: Path, found: RunStatus) -> None:
    """The plainest way to count it."""
    outcomes: dict[int, str] = {}
    known: set[str] = set()
    with open_store(str(path)) as store:
        for _, entry in store.journal():
            if isinstance(entry, OutcomeEntry):
                name = "no_proposal" if entry.variant is None else "pending"
                if entry.variant is not None and entry.variant.variant_id in known:
                    name = "repeated"
                outcomes[entry.number] = name
                known |= {entry.variant.variant_id} if entry.variant else set()
            elif isinstance(entry, EvaluationEntry) and entry.purpose is Purpose.SEARCH:
                outcomes[entry.number] = entry.evaluation.status.value
        ranking, events = store.ranking("toy"), store.events()
    assert found.counts == {"toy": Counter(outcomes.values())}
    assert {"repeated", "passed"} <= set(outcomes.values())
    newest = [row.verify or row.search for row in ranking]
    assert found.trust == {"toy": Counter(evaluation.trust for evaluation in newest)}
    assert found.checks == Counter(check for row in ranking if row.verify for check in row.verify.checks)
    for place in found.islands:
        own = [row.verify or row.search for row in ranking if row.request.island == place.island]
        assert (place.passed, place.fitness) == (len(own), max(evaluation.fitness for evaluation in own))
        kinds = Counter(event.kind for event in events if event.task and event.island == place.island)
        counted = (EventKind.STALLED, EventKind.TRAPPED, EventKind.MIGRATION)
        assert (place.stalled, place.trapped, place.migrations) == tuple(kinds[kind] for kind in counted)
    given_up = [event for event in events if event.kind in (EventKind.STALLED, EventKind.TRAPPED)]
    assert found.given_up.stalled + found.given_up.trapped == len(given_up)
    assert [item.lineage for item in found.abandoned] == [event.lineage for event in given_up[-8:]]
    assert [item.event for item in found.happenings][-digest.SHOWN_EVENTS :] == list(events[-digest.SHOWN_EVENTS :])


def test_the_best_of_an_island_is_found_where_all_its_known_leaders_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (digest, status):
        monkeypatch.setattr(module, "LEADERS", 1)
    path = tmp_path / "run.sqlite"
    with session(path, 40) as (store, engine):
        while engine.spent.evaluations < 40:
            turn(engine, SimulatedEvaluator(3))
        leader = next(row for row in store.ranking("toy") if row.request.island == 1)
        caught = Evaluation(leader.variant.variant_id, Status.WRONG_VALUES, Stage.VERIFY, "simulated")
        store.record([EvaluationEntry(leader.number, Purpose.VERIFY, caught)], store.spent)
        follower = next(row for row in store.ranking("toy") if row.request.island == 1)
        assert StatusReader(store).look().islands[1].fitness == follower.search.fitness < leader.search.fitness


def test_a_digest_that_does_not_fit_or_is_damaged_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "ENTRIES", 20)
    path = tmp_path / "run.sqlite"
    with session(path, 40) as (store, engine):
        for _ in range(12):
            turn(engine, SimulatedEvaluator(3))
        expected, kept = StatusReader(store).look(), store.kept(digest.NAME)
        assert kept is not None
        for key, text in (
            ("of another version", kept.text),
            (kept.key, kept.text[:-90]),
            (kept.key, '{"bills": 3}'),
            (kept.key, "[]"),
        ):
            store.keep(digest.NAME, key, text)
            assert StatusReader(store).look() == expected
        store.record([], Spent())
    with session(path, 60) as (store, engine):  # and a run makes another one
        while engine.finished is None:
            turn(engine, SimulatedEvaluator(3))
        again = store.kept(digest.NAME)
        assert again is not None
        assert again.key == kept.key
    assert look(path) == look(without_digest(path))


def test_a_look_costs_no_more_late_in_a_run_than_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs, sizes, path = [], [], tmp_path / "run.sqlite"
    for evaluations in (80, 200):
        with session(path, evaluations) as (store, engine):
            while engine.spent.evaluations < evaluations:
                turn(engine, SimulatedEvaluator(3, failure_rate=0.2))
            now = Digest(store)
            now.follow()
            with monkeypatch.context() as patched:
                patched.setattr(digest, "ENTRIES", 0)
                now.keep()
            sizes.append(len(freeze(now)))
            steps = Steps(store)
            with steps:
                StatusReader(store).look()
            costs.append((steps.opcodes, steps.statements))
    (early, asked_early), (late, asked_late) = costs
    assert late < 1.3 * early, f"steps of the interpreter: {early} at 80 variants, {late} at 200"
    assert asked_late == asked_early, "statements"
    assert sizes[1] < 1.3 * sizes[0], f"bytes of a digest: {sizes[0]} at 80 variants, {sizes[1]} at 200"
