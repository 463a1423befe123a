"""The engine through its public face: a whole search, resuming, leases, lost work, budgets, verification."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evo.errors import StoreError, TaskError, TaskErrors
from evo.evaluation.base import Effort
from evo.evaluation.simulated import SimulatedEvaluator
from evo.records import Evaluation, Event, EventKind, Exchange, NoProposal, Proposal, Request, Stage, Status, Usage
from evo.search.engine import Engine, ProposalWork
from evo.search.leases import Lease
from evo.search.settings import Budget, SearchSettings
from evo.search.setup import OperatorInfo, TaskSetup
from evo.search.toy import TOY_OPERATORS, infos, render, toy_setup
from operators.base import OperatorKind
from population_store.base import Entry, EvaluationEntry, OutcomeEntry, PopulationStore, Purpose, RunHeader
from population_store.opening import open_store

OPERATORS = {operator.name: operator for operator in TOY_OPERATORS}
SMALL = SearchSettings(islands=2, migration_interval=6, stall_limit=6, island_capacity=8, verify_elites=2)

DEFAULT = Budget(evaluations=40)


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PopulationStore]:
    with new_store(tmp_path / "run.sqlite") as opened:
        yield opened


def new_store(path: Path) -> PopulationStore:
    return open_store(str(path), header=RunHeader("test", 1, "{}", "{}", "{}", "2026-01-01T00:00:00+00:00"))


def engine_on(
    store: PopulationStore,
    *,
    budget: Budget = DEFAULT,
    settings: SearchSettings = SMALL,
    tasks: tuple[TaskSetup, ...] | None = None,
    operators: tuple[OperatorInfo, ...] | None = None,
    clock: Callable[[], float] | None = None,
) -> Engine:
    return Engine(
        seed=7,
        settings=settings,
        budget=budget,
        tasks=tasks or (toy_setup(),),
        operators=infos() if operators is None else operators,
        store=store,
        clock=clock or Clock(),
    )


def run_now(coroutine: Coroutine[Any, Any, Proposal | NoProposal]) -> Proposal | NoProposal:
    """The result of an operator that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: Proposal | NoProposal = done.value
        return result
    raise AssertionError("a toy operator waits for nothing")


def propose(work: ProposalWork) -> Proposal | NoProposal:
    return run_now(OPERATORS[work.request.operator].propose(work.parents, work.context, np.random.default_rng(work.seed)))


def steps(engine: Engine, evaluator: SimulatedEvaluator) -> Iterator[None]:
    """One recorded result at a time; what comes next depends on the state alone."""
    while engine.finished is None:
        if leases := engine.ask_evaluations(1, "simulated"):
            assert engine.tell_evaluation(leases[0].token, evaluator.evaluate(leases[0].item, engine.claim))
        elif works := engine.ask_proposals(1):
            assert engine.tell_proposal(works[0].request.number, propose(works[0]))
        yield


def finish(engine: Engine, evaluator: SimulatedEvaluator | None = None) -> str:
    for _ in steps(engine, evaluator or SimulatedEvaluator(3, failure_rate=0.9)):
        pass
    assert engine.finished is not None
    return engine.finished


def history(store: PopulationStore) -> list[Entry]:
    """The journal without the diary of sessions."""
    sessions = (EventKind.RESUMED, EventKind.STOPPED, EventKind.WORKER_LOST)
    return [entry for _, entry in store.journal() if not (isinstance(entry, Event) and entry.kind in sessions)]


def evaluations(store: PopulationStore, purpose: Purpose) -> list[EvaluationEntry]:
    return [entry for _, entry in store.journal() if isinstance(entry, EvaluationEntry) and entry.purpose is purpose]


def test_a_search_improves_on_its_start_within_its_budget(store: PopulationStore) -> None:
    engine = engine_on(store, budget=Budget(evaluations=60))
    assert "60 evaluations" in finish(engine)
    progress = engine.progress().tasks[0]
    assert progress.evaluations == engine.spent.evaluations == len(evaluations(store, Purpose.SEARCH)) == 60
    assert progress.best_fitness > 1.3
    best = engine.best("toy")
    assert best is not None
    assert best.variant.variant_id == progress.best_variant == store.ranking("toy", 1)[0].variant.variant_id


@pytest.mark.parametrize("seed", range(3))
def test_a_search_cut_at_any_points_equals_the_uninterrupted_one(tmp_path: Path, seed: int) -> None:
    evaluator = SimulatedEvaluator(3, failure_rate=0.9)
    with new_store(tmp_path / "whole.sqlite") as whole:
        finish(engine_on(whole), evaluator)
        expected, spent = history(whole), whole.spent
    rng = np.random.default_rng(seed)
    path = tmp_path / "cut.sqlite"
    new_store(path).close()
    sessions, ended = 0, None
    while ended is None:
        with open_store(str(path), write=True) as cut:
            engine = engine_on(cut)
            for _ in itertools.islice(steps(engine, evaluator), int(rng.integers(1, 40))):
                pass
            ended = engine.finished
            # Work that was handed out and never came back must not be lost either.
            engine.ask_evaluations(int(rng.integers(3)))
            sessions += 1
    with open_store(str(path)) as cut:
        assert history(cut) == expected
        assert dataclasses.replace(cut.spent, wall_s=0) == dataclasses.replace(spent, wall_s=0)
    assert sessions > 2


def test_equal_seeds_and_orders_ask_the_same_whatever_the_batches(tmp_path: Path) -> None:
    """Asking and telling in bulk is only a matter of commits."""
    journals = []
    for bulk in (False, True):
        with new_store(tmp_path / f"{bulk}.sqlite") as store:
            engine, evaluator = engine_on(store), SimulatedEvaluator(3)
            while engine.finished is None:
                works = engine.ask_proposals(3) if bulk else tuple(w for _ in range(3) for w in engine.ask_proposals(1))
                outcomes = [(work.request.number, propose(work)) for work in works]
                told = engine.tell_proposals(outcomes) if bulk else tuple(engine.tell_proposal(*item) for item in outcomes)
                assert all(told)
                leases = engine.ask_evaluations(3) if bulk else tuple(x for _ in range(3) for x in engine.ask_evaluations(1))
                verdicts = [(lease.token, evaluator.evaluate(lease.item, engine.claim)) for lease in leases]
                told = engine.tell_evaluations(verdicts) if bulk else tuple(engine.tell_evaluation(*item) for item in verdicts)
                assert all(told)
            journals.append(history(store))
    assert journals[0] == journals[1]


def test_requests_are_in_the_store_before_they_are_handed_out(store: PopulationStore) -> None:
    engine = engine_on(store)
    next(steps(engine, SimulatedEvaluator(3)))
    works = engine.ask_proposals(4)
    assert [work.request for work in works] == [entry for _, entry in store.journal()][-4:]


def test_the_fastest_start_becomes_the_baseline_and_starts_are_ranked_by_it(store: PopulationStore) -> None:
    sources = (render({}), render({"knob_a": 1}), render({"FLAG_B": True}))
    engine = engine_on(store, tasks=(toy_setup(starts=sources),))
    assert engine.ask_proposals(1) == ()
    evaluator = SimulatedEvaluator(3)
    leases = engine.ask_evaluations(9)
    assert [lease.item.baseline for lease in leases] == [None] * 3
    speed = {lease.item.variant: evaluator.landscape for lease in leases}
    assert len(speed) == 3
    for lease in leases:
        verdict = evaluator.evaluate(lease.item, engine.claim)
        slow = dataclasses.replace(verdict.cases[0], latency_us=300.0 - 100 * lease.item.number)
        assert engine.tell_evaluation(lease.token, dataclasses.replace(verdict, cases=(slow,)))
    best = engine.best("toy")
    assert best is not None
    assert best.variant.source == sources[2]
    (work,) = engine.ask_proposals(1)
    engine.tell_proposal(work.request.number, propose(work))
    (lease,) = engine.ask_evaluations(1)
    assert lease.item.baseline is not None
    assert lease.item.baseline.variant.source == sources[2]
    assert lease.item.baseline.configurations["simulated"]["knob_a"] == 0


def test_starts_that_all_fail_end_the_run_with_one_clear_error(store: PopulationStore) -> None:
    engine = engine_on(store)
    (lease,) = engine.ask_evaluations(1)
    verdict = Evaluation(
        lease.item.variant.variant_id, Status.WRONG_VALUES, Stage.GATE, "simulated", message="case small: 3 of 4 wrong"
    )
    engine.tell_evaluation(lease.token, verdict)
    assert isinstance(engine.failure, TaskError)
    assert "task toy" in str(engine.failure)
    assert "3 of 4 wrong" in str(engine.failure)
    assert engine.finished == str(engine.failure)
    assert engine.ask_proposals(5) == ()
    assert isinstance(engine_on(store).failure, TaskError), "a resumed run says so too"


def test_all_tasks_whose_starts_fail_are_told_of_together(store: PopulationStore) -> None:
    def named(name: str) -> TaskSetup:
        setup = toy_setup()
        return dataclasses.replace(
            setup,
            task=dataclasses.replace(setup.task, name=name),
            starts=tuple(dataclasses.replace(start, task=name) for start in setup.starts),
        )

    engine = engine_on(store, tasks=(named("one"), named("two"), named("three")))
    asked: set[str] = set()
    while len(asked) < 3:
        (lease,) = engine.ask_evaluations(1)
        asked.add(lease.task)
        if lease.task == "two":
            verdict = SimulatedEvaluator(3).evaluate(lease.item, engine.claim)
        else:
            text = "the wrapper needs a value on the host: .item()\n  at line 12: if x.sum().item() > 0:"
            verdict = Evaluation(lease.item.variant.variant_id, Status.UNTRACEABLE, Stage.TRACE, "simulated", message=text)
        engine.tell_evaluation(lease.token, verdict)
        assert engine.ask_proposals(1) == ()
    failure = engine.failure
    assert isinstance(failure, TaskErrors)
    assert [str(error).split(":")[0] for error in failure.errors] == ["task one", "task three"]
    assert all("at line 12: if x.sum().item() > 0:" in str(error) for error in failure.errors), "as it may be on a later line"
    assert engine.finished == str(failure)
    assert [str(error) for error in pickle.loads(pickle.dumps(failure)).errors] == [str(error) for error in failure.errors]


def test_a_silent_holder_loses_its_lease_and_its_late_verdict_is_refused(store: PopulationStore) -> None:
    clock = Clock()
    engine, evaluator = engine_on(store, clock=clock), SimulatedEvaluator(3)
    (lease,) = engine.ask_evaluations(1)
    clock.now = 500.0
    assert engine.renew([lease.token]) == (True,)
    clock.now = 1000.0
    assert engine.ask_evaluations(1) == (), "renewed, so still out"
    clock.now = 1200.0
    (again,) = engine.ask_evaluations(1)
    assert again.item == lease.item
    assert engine.renew([lease.token]) == (False,)
    verdict = evaluator.evaluate(lease.item, engine.claim)
    assert not engine.tell_evaluation(lease.token, verdict)
    assert engine.tell_evaluation(again.token, verdict)
    assert not engine.tell_evaluation(again.token, verdict), "reported already"
    assert len(evaluations(store, Purpose.SEARCH)) == 1


def test_a_token_of_an_earlier_session_is_stale(store: PopulationStore) -> None:
    evaluator = SimulatedEvaluator(3)
    (old,) = engine_on(store).ask_evaluations(1)
    engine = engine_on(store)
    (new,) = engine.ask_evaluations(1)
    assert old.token != new.token
    assert not engine.tell_evaluation(old.token, evaluator.evaluate(old.item, engine.claim))
    assert engine.tell_evaluation(new.token, evaluator.evaluate(new.item, engine.claim))


def test_a_variant_that_kills_three_evaluators_is_recorded_as_failed(store: PopulationStore) -> None:
    engine, evaluator = engine_on(store), SimulatedEvaluator(3)
    next(steps(engine, evaluator))
    (work,) = engine.ask_proposals(1)
    engine.tell_proposal(work.request.number, propose(work))
    for _ in range(2):
        (lease,) = engine.ask_evaluations(1, "simulated")
        assert engine.give_back(lease.token, "signal 11")
        assert not engine.give_back(lease.token)
    engine = engine_on(store)  # what was lost is remembered over sessions
    (lease,) = engine.ask_evaluations(1, "simulated")
    engine.give_back(lease.token, "signal 11")
    assert engine.ask_evaluations(1) == ()
    verdict = evaluations(store, Purpose.SEARCH)[-1].evaluation
    assert verdict.status is Status.RUNTIME_ERROR
    assert "killed its evaluator 3 times" in verdict.message
    assert "signal 11" in verdict.message
    assert len([event for event in store.events() if event.kind is EventKind.WORKER_LOST]) == 3


def test_a_lost_proposal_is_handed_out_again_and_fails_after_three(store: PopulationStore) -> None:
    engine = engine_on(store, settings=dataclasses.replace(SMALL, pending_limit=1))
    next(steps(engine, SimulatedEvaluator(3)))
    numbers = []
    for _ in range(3):
        (work,) = engine.ask_proposals(1)
        assert engine.ask_proposals(1) == ()
        numbers.append(work.request.number)
        assert engine.give_back(work.request.number, "endpoint gone")
    assert len(set(numbers)) == 1
    outcome = [entry for _, entry in store.journal() if isinstance(entry, OutcomeEntry)][-1].outcome
    assert isinstance(outcome, NoProposal)
    assert outcome.failed
    assert not engine.tell_proposal(numbers[0], Proposal(render({"knob_a": 1}), "late")), "the outcome is known already"


def test_equal_plans_are_measured_once_per_device(store: PopulationStore) -> None:
    engine, evaluator = engine_on(store), SimulatedEvaluator(3)
    next(steps(engine, evaluator))
    works = engine.ask_proposals(2)
    source = render({"knob_a": 1})
    engine.tell_proposals(
        (work.request.number, Proposal(source + note, "x")) for work, note in zip(works, ("", "# same\n"), strict=True)
    )
    first, second = engine.ask_evaluations(2, "simulated")
    ids = first.item.variant.variant_id, second.item.variant.variant_id
    assert engine.claim("p", ids[0]) is None
    assert engine.claim("p", ids[0]) is None, "its own reservation"
    assert engine.claim("p", ids[1]) == ids[0]
    engine.give_back(first.token)
    assert engine.claim("p", ids[1]) is None, "the reservation died with the lease"
    (first,) = engine.ask_evaluations(1, "another device")
    assert engine.claim("p", ids[0]) is None, "other devices are measured apart"
    verdict = evaluator.evaluate(second.item, engine.claim)
    engine.tell_evaluation(second.token, verdict)
    engine.give_back(first.token)
    (first,) = engine.ask_evaluations(1, "simulated")
    duplicate = evaluator.evaluate(first.item, engine.claim)
    assert (duplicate.status, duplicate.duplicate_of) == (Status.DUPLICATE, ids[1])


def test_a_known_module_is_recorded_but_not_evaluated_again(store: PopulationStore) -> None:
    engine = engine_on(store)
    next(steps(engine, SimulatedEvaluator(3)))
    (work,) = engine.ask_proposals(1)
    assert engine.tell_proposal(work.request.number, Proposal(render({}), "nothing changed"))
    assert engine.ask_evaluations(1) == ()
    kinds = [event.kind for event in store.events()]
    assert kinds == [EventKind.TRAPPED, EventKind.RESTART], "the child repeats an ancestor"


def test_text_that_cannot_be_encoded_is_a_failed_proposal(store: PopulationStore) -> None:
    engine = engine_on(store)
    next(steps(engine, SimulatedEvaluator(3)))
    (work,) = engine.ask_proposals(1)
    assert engine.tell_proposal(work.request.number, Proposal("x = '\ud800'", "half a pair"))
    assert engine.ask_evaluations(1) == ()


def test_operators_that_do_not_apply_are_not_asked_again_and_the_search_ends(store: PopulationStore) -> None:
    engine, asked = engine_on(store), []
    next(steps(engine, SimulatedEvaluator(3)))
    while engine.finished is None:
        (work,) = engine.ask_proposals(1) or pytest.fail("neither work nor an end")
        asked.append((work.request.operator, work.request.parents))
        engine.tell_proposal(work.request.number, NoProposal("no loop to change"))
        if not any(engine.ask_proposals(0)) and (leases := engine.ask_evaluations(1)):
            engine.tell_evaluation(leases[0].token, SimulatedEvaluator(3).evaluate(leases[0].item, engine.claim))
    assert engine.finished == "search space exhausted"
    assert len(asked) == len(set(asked)) == 2, "each mutation once for the only variant"


def test_without_operators_the_starting_kernels_are_judged_and_verified_and_nothing_else(store: PopulationStore) -> None:
    engine = engine_on(store, operators=(), settings=SearchSettings(verify_elites=1))
    assert finish(engine) == "the starting kernels are tuned, and the run has no operators"
    assert len(evaluations(store, Purpose.SEARCH)) == len(toy_setup().starts)
    assert len(evaluations(store, Purpose.VERIFY)) == 1


def test_an_operator_that_always_fails_is_given_up(store: PopulationStore) -> None:
    engine = engine_on(store)
    next(steps(engine, SimulatedEvaluator(3)))
    for _ in range(100):
        works = engine.ask_proposals(1)
        if not works:
            break
        engine.tell_proposal(works[0].request.number, NoProposal("endpoint is down", failed=True))
    assert not engine.ask_proposals(1)


def test_elites_are_verified_once_in_their_configuration_when_the_budget_is_used(store: PopulationStore) -> None:
    engine, evaluator = engine_on(store, budget=Budget(evaluations=24)), SimulatedEvaluator(3, noise=0.2)
    seen = []
    while engine.finished is None:
        for lease in engine.ask_evaluations(1):
            seen.append(lease.item)
            engine.tell_evaluation(lease.token, evaluator.evaluate(lease.item, engine.claim))
        for work in engine.ask_proposals(1):
            engine.tell_proposal(work.request.number, propose(work))
    verified = [item for item in seen if item.effort is Effort.VERIFY]
    assert seen[-len(verified) :] == verified
    assert 1 <= len(verified) <= SMALL.verify_elites
    assert all(item.chosen["simulated"] for item in verified)
    assert len(evaluations(store, Purpose.SEARCH)) == 24
    for entry in evaluations(store, Purpose.VERIFY):
        assert entry.evaluation.stage is Stage.VERIFY
    # The noise of the search flattered its favourite; the ranking now goes by what a second measurement said.
    top = store.ranking("toy")
    scores = [(row.verify or row.search).fitness for row in top]
    assert engine.progress().tasks[0].best_fitness == pytest.approx(scores[0])


def test_an_elite_that_fails_verification_is_no_longer_best_nor_on_the_front(store: PopulationStore) -> None:
    engine, evaluator = engine_on(store, budget=Budget(evaluations=40)), SimulatedEvaluator(3)
    failed: set[str] = set()
    while engine.finished is None:
        for lease in engine.ask_evaluations(1):
            verdict = evaluator.evaluate(lease.item, engine.claim)
            if lease.item.effort is Effort.VERIFY:
                failed.add(verdict.variant_id)
                verdict = Evaluation(verdict.variant_id, Status.WRONG_VALUES, Stage.VERIFY, "simulated", message="held-out case")
            engine.tell_evaluation(lease.token, verdict)
        for work in engine.ask_proposals(1):
            engine.tell_proposal(work.request.number, propose(work))
    best = engine.best("toy")
    assert best is not None
    assert best.variant.variant_id not in failed
    assert failed.isdisjoint(parent.variant.variant_id for parent in engine.front("toy"))
    assert len(failed) == SMALL.verify_elites, "others took their place, but no more are verified than allowed"


def test_every_budget_ends_the_run_and_a_larger_one_goes_on(store: PopulationStore) -> None:
    clock = Clock()
    engine = engine_on(store, budget=Budget(wall_s=50), clock=clock)
    next(steps(engine, SimulatedEvaluator(3)))
    (work,) = engine.ask_proposals(1)
    clock.now = 60.0
    assert engine.finished is None, "a proposal is out"
    usage = Usage(dollars=2.5)
    exchange = Exchange("m", "p", "t", "prompt", "reply", "end_turn", "r", 1.0, usage)
    engine.tell_proposal(work.request.number, dataclasses.replace(Proposal(render({"knob_b": 2}), "x"), exchanges=(exchange,)))
    assert all(lease.item.effort is Effort.VERIFY for lease in engine.ask_evaluations(5))
    clock.now = 0.0
    resumed = engine_on(store, budget=Budget(wall_s=50), clock=clock)
    assert resumed.spent.wall_s >= 60.0
    assert resumed.ask_proposals(1) == ()
    assert resumed.spent.dollars == 2.5
    assert engine_on(store, budget=Budget(dollars=2)).ask_proposals(1) == ()
    assert [lease.item.effort for lease in engine_on(store, budget=Budget(dollars=2)).ask_evaluations(5)] == [Effort.SEARCH]
    assert len(engine_on(store, budget=Budget(dollars=9)).ask_proposals(3)) == 3
    gpu = engine_on(store, budget=Budget(gpu_s=10))
    (lease,) = gpu.ask_evaluations(1)
    gpu.tell_evaluation(lease.token, dataclasses.replace(SimulatedEvaluator(3).evaluate(lease.item, gpu.claim), gpu_s=11))
    assert gpu.ask_proposals(1) == ()


def test_gpu_seconds_are_set_aside_for_evaluations_under_way(store: PopulationStore) -> None:
    engine = engine_on(store, budget=Budget(gpu_s=100.0), settings=dataclasses.replace(SMALL, verify_elites=0))
    evaluator = SimulatedEvaluator(3)
    seconds = (20.0, 7.0, 20.0, 3.0, 9.0, 1.0, 12.0, 5.0, 15.0)
    out: list[Lease] = []
    most = 0

    def evaluate(lease: Lease, gpu_s: float) -> None:
        engine.tell_evaluation(lease.token, dataclasses.replace(evaluator.evaluate(lease.item, engine.claim), gpu_s=gpu_s))

    (first,) = engine.ask_evaluations(5)
    assert engine.ask_evaluations(5) == (), "nothing is known of what one takes"
    evaluate(first, seconds[0])
    for used in itertools.cycle(seconds[1:]):
        for work in engine.ask_proposals(4):
            engine.tell_proposal(work.request.number, propose(work))
        out += engine.ask_evaluations(8)
        most = max(most, len(out))
        if not out:
            break
        assert engine.spent.gpu_s + 20.0 * len(out) <= 100.0
        evaluate(out.pop(0), used)
    assert most == 4
    assert 80.0 < engine.spent.gpu_s <= 100.0
    assert engine.finished is not None
    assert "has no room for another evaluation" in engine.finished
    again = engine_on(store, budget=Budget(gpu_s=100.0))
    assert again.ask_proposals(1) == (), "a resumed run knows it, too"
    assert engine_on(store, budget=Budget(gpu_s=200.0)).ask_proposals(1)


def test_what_a_lost_evaluator_used_counts_as_the_longest(store: PopulationStore) -> None:
    engine = engine_on(store, budget=Budget(gpu_s=100.0))
    (lease,) = engine.ask_evaluations(1)
    engine.tell_evaluation(lease.token, dataclasses.replace(SimulatedEvaluator(3).evaluate(lease.item, engine.claim), gpu_s=30.0))
    for work in engine.ask_proposals(4):
        engine.tell_proposal(work.request.number, propose(work))
    (lost,) = engine.ask_evaluations(1)
    engine.give_back(lost.token)
    assert engine.spent.gpu_s == 60.0


def test_the_wall_budget_begins_when_the_first_evaluator_is_ready(store: PopulationStore) -> None:
    clock = Clock()
    engine = engine_on(store, budget=Budget(wall_s=50), clock=clock)
    clock.now = 1000.0
    assert engine.progress().phase == "starting evaluators"
    assert engine.spent.wall_s == 0
    (lease,) = engine.ask_evaluations(1)
    clock.now = 1030.0
    assert engine.progress().phase == "search"
    assert engine.spent.wall_s == 30
    engine.tell_evaluation(lease.token, SimulatedEvaluator(3).evaluate(lease.item, engine.claim))
    clock.now = 1051.0
    assert engine.ask_proposals(1) == ()
    resumed = engine_on(store, budget=Budget(wall_s=50), clock=clock)
    clock.now = 2000.0
    assert resumed.spent.wall_s == 30, "what was recorded last; the new session has not begun"


def test_a_resumed_run_records_which_devices_it_tries_again(store: PopulationStore) -> None:
    engine = engine_on(store)
    next(steps(engine, SimulatedEvaluator(3)))
    for _ in range(2):
        engine.quarantine("evaluator-0: GPU 1 fails its health check twice")
    engine_on(store)
    resumed = [event.reason for event in store.events() if event.kind is EventKind.RESUMED]
    assert resumed == [
        "session 2 of this run; in quarantine before, and tried again: evaluator-0: GPU 1 fails its health check twice"
    ]


def test_no_more_is_asked_for_than_the_budget_can_evaluate(store: PopulationStore) -> None:
    engine = engine_on(store, budget=Budget(evaluations=5))
    next(steps(engine, SimulatedEvaluator(3)))
    works = engine.ask_proposals(100)
    assert len(works) == 4
    engine.tell_proposal(works[0].request.number, NoProposal("does not apply"))
    assert len(engine.ask_proposals(100)) == 1, "what came to nothing may be tried another way"


def test_stopping_hands_out_nothing_and_the_next_session_goes_on(store: PopulationStore) -> None:
    engine = engine_on(store)
    running = steps(engine, SimulatedEvaluator(3))
    for _ in range(9):
        next(running)
    (work,) = engine.ask_proposals(1)
    engine.stop("interrupted")
    assert engine.ask_proposals(1) == ()
    assert engine.ask_evaluations(1) == ()
    assert engine.finished is None
    assert engine.tell_proposal(work.request.number, propose(work))
    assert engine.finished == "interrupted"
    assert "40 evaluations" in finish(engine_on(store))


def test_tasks_share_the_evaluations_evenly(store: PopulationStore) -> None:
    engine = engine_on(store, tasks=(toy_setup("one"), toy_setup("two")), budget=Budget(evaluations=24))
    finish(engine)
    counts = [task.evaluations for task in engine.progress().tasks]
    assert sum(counts) == 24
    assert abs(counts[0] - counts[1]) <= 8


def test_proposers_without_a_model_get_only_what_needs_none(store: PopulationStore) -> None:
    with_model = tuple(
        dataclasses.replace(info, needs_model=info.name == "toy_flag") for info in infos() if info.kind is OperatorKind.MUTATION
    )
    engine = engine_on(store, operators=with_model)
    next(steps(engine, SimulatedEvaluator(3)))
    plain = engine.ask_proposals(4, needs_model=False)
    assert {work.request.operator for work in plain} == {"toy_knob"}
    model = engine.ask_proposals(4, needs_model=True)
    assert {work.request.operator for work in model} == {"toy_flag"}


def test_a_store_of_another_task_or_island_count_is_refused(store: PopulationStore) -> None:
    finish(engine_on(store))
    with pytest.raises(StoreError, match="given 'toy'; allowed: other"):
        engine_on(store, tasks=(toy_setup("other"),))
    with pytest.raises(StoreError, match="number of islands"):
        engine_on(store, settings=dataclasses.replace(SMALL, islands=1))


def test_after_a_refused_record_the_engine_acts_on_nothing(store: PopulationStore) -> None:
    engine = engine_on(store)
    next(steps(engine, SimulatedEvaluator(3)))
    store.close()
    for _ in range(2):
        with pytest.raises(StoreError):
            engine.ask_proposals(1)
    with pytest.raises(StoreError):
        engine.ask_evaluations(1)


def test_a_verdict_on_another_variant_is_an_error(store: PopulationStore) -> None:
    engine = engine_on(store)
    (lease,) = engine.ask_evaluations(1)
    verdict = SimulatedEvaluator(3).evaluate(lease.item, engine.claim)
    with pytest.raises(ValueError, match="given a verdict on other"):
        engine.tell_evaluation(lease.token, dataclasses.replace(verdict, variant_id="other"))


def test_a_restarted_lineage_begins_with_another_operator_and_knows_what_was_abandoned(store: PopulationStore) -> None:
    settings = SearchSettings(islands=1, signature_limit=1, crossover_share=0.0, repair_share=0.0)
    engine = engine_on(store, settings=settings)
    next(steps(engine, SimulatedEvaluator(3)))
    lineages, used = [], []
    for number in range(6):
        (work,) = engine.ask_proposals(1)
        assert len(work.context.tabu) == number
        lineages.append(work.request.lineage)
        used.append(work.request.operator)
        engine.tell_proposal(
            work.request.number, Proposal(render({"knob_a": number % 4, "knob_b": 1 + number // 4}), f"idea {number}")
        )
        (lease,) = engine.ask_evaluations(1)
        variant_id = lease.item.variant.variant_id
        failed = Evaluation(variant_id, Status.COMPILE_ERROR, Stage.COMPILE, "simulated", message="no", signature="no")
        engine.tell_evaluation(lease.token, failed)
    assert lineages == [f"toy/0/{number}" for number in range(6)]
    assert all(one != next_one for one, next_one in itertools.pairwise(used)), "each unlike what the lineage before it tried"
    assert [event.kind for event in store.events()] == [EventKind.TRAPPED, EventKind.RESTART] * 6
    assert "same error" in store.events()[0].reason
    assert work.context.tabu[-1].startswith("idea 4 (given up: 1 times the same error")


def test_the_best_migrate_to_the_next_island_of_the_ring(store: PopulationStore) -> None:
    engine = engine_on(store, settings=dataclasses.replace(SMALL, islands=3, migrants=1, migration_interval=4))
    finish(engine)
    moves = [event for event in store.events() if event.kind is EventKind.MIGRATION]
    assert moves
    requests, made_on = requests_of(store), dict[str, int]()
    for _, entry in store.journal():
        if isinstance(entry, OutcomeEntry) and entry.variant is not None:
            made_on.setdefault(entry.variant.variant_id, requests[entry.number].island)
    first = moves[0]
    assert first.island == (made_on[first.variant_id] + 1) % 3
    assert first.lineage.startswith(f"toy/{first.island}/")
    assert first.reason == f"from island {(first.island - 1) % 3}"


def requests_of(store: PopulationStore) -> dict[int, Request]:
    return {entry.number: entry for _, entry in store.journal() if isinstance(entry, Request)}


def test_map_elites_searches_and_resumes_too(store: PopulationStore) -> None:
    settings = dataclasses.replace(SMALL, selection="map_elites")
    engine = engine_on(store, settings=settings)
    finish(engine)
    task = engine.progress().tasks[0]
    assert task.best_fitness > 1.0
    assert engine_on(store, settings=settings).progress().tasks == engine.progress().tasks


def test_a_failed_variant_is_repaired_with_its_verdict_at_hand(store: PopulationStore) -> None:
    engine = engine_on(store, settings=SearchSettings(islands=1, repair_share=1.0))
    next(steps(engine, SimulatedEvaluator(3)))
    (work,) = engine.ask_proposals(1)
    assert work.request.operator != "toy_repair", "nothing to repair yet"
    engine.tell_proposal(work.request.number, Proposal(render({"knob_a": 1}), "idea"))
    (lease,) = engine.ask_evaluations(1)
    broken = lease.item.variant.variant_id
    verdict = Evaluation(broken, Status.WRONG_VALUES, Stage.GATE, "simulated", message="row 3 is wrong", signature="rows")
    engine.tell_evaluation(lease.token, verdict)
    first, second = engine.ask_proposals(2)
    assert (first.request.operator, first.request.parents) == ("toy_repair", (broken,))
    evaluation = first.parents[0].evaluation
    assert evaluation is not None
    assert evaluation.message == "row 3 is wrong"
    assert second.request.operator != "toy_repair", "one repair at a time"
