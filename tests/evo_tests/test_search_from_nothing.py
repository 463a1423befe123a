"""Searches without a starting kernel: the first module that passes is made by a model, and becomes what others are compared with."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from evo.errors import TaskError
from evo.evaluation.simulated import SimulatedEvaluator
from evo.records import Evaluation, Event, EventKind, Proposal, Stage, Status
from evo.search.engine import Engine, ProposalWork
from evo.search.settings import Budget, SearchSettings
from evo.search.setup import OperatorInfo, TaskSetup
from evo.search.toy import FLAGS, KNOBS, LEVELS, TOY_OPERATORS, infos, render, toy_setup
from operators.base import OperatorKind
from population_store.base import Entry, PopulationStore, RunHeader
from population_store.opening import open_store

GENERATE = OperatorInfo("generate", OperatorKind.GENERATE, 0)
TOYS = {operator.name: operator for operator in TOY_OPERATORS}
SMALL = SearchSettings(islands=2, verify_elites=1)
HEADER = RunHeader("test", 1, "{}", "{}", "{}", "2026-01-01T00:00:00+00:00")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PopulationStore]:
    with open_store(str(tmp_path / "run.sqlite"), header=HEADER) as opened:
        yield opened


def nothing() -> TaskSetup:
    return dataclasses.replace(toy_setup(), starts=())


def engine_on(
    store: PopulationStore,
    settings: SearchSettings = SMALL,
    evaluations: int | None = None,
    *,
    operators: tuple[OperatorInfo, ...] = (),
) -> Engine:
    return Engine(
        seed=5,
        settings=settings,
        budget=Budget(evaluations=evaluations),
        tasks=[nothing()],
        operators=operators or (*infos(), GENERATE),
        store=store,
        clock=lambda: 0.0,
    )


def propose(work: ProposalWork) -> Proposal:
    rng = np.random.default_rng(work.seed)
    if work.request.operator == "generate":
        assert work.parents == ()
        genes = {name: bool(rng.integers(2)) for name in FLAGS} | {name: int(rng.integers(LEVELS)) for name in KNOBS}
        return Proposal(render(genes), "from nothing")
    coroutine = TOYS[work.request.operator].propose(work.parents, work.context, rng)
    try:
        coroutine.send(None)
    except StopIteration as done:
        outcome: Proposal = done.value
        return outcome
    raise AssertionError("a toy operator waits for nothing")


def steps(engine: Engine, evaluator: SimulatedEvaluator) -> Iterator[None]:
    while engine.finished is None:
        if leases := engine.ask_evaluations(1, "simulated"):
            engine.tell_evaluation(leases[0].token, evaluator.evaluate(leases[0].item, engine.claim))
        elif works := engine.ask_proposals(1):
            engine.tell_proposal(works[0].request.number, propose(works[0]))
        yield


def history(store: PopulationStore) -> list[Entry]:
    return [entry for _, entry in store.journal() if not (isinstance(entry, Event) and entry.kind is EventKind.RESUMED)]


def test_a_search_finds_its_own_start_and_improves_on_it(store: PopulationStore) -> None:
    engine = engine_on(store, evaluations=150)
    evaluator = SimulatedEvaluator(3, failure_rate=0.9, starts_fail=True)
    for _ in steps(engine, evaluator):
        pass
    progress = engine.progress().tasks[0]
    assert progress.evaluations == 150
    assert progress.best_fitness > 1.5
    assert all(island.members for island in progress.islands), "who has found nothing goes on from what others found"
    first = next(row for row in store.ranking("toy") if row.search.fitness == 1.0)
    assert store.ranking("toy", 1)[0].search.fitness > first.search.fitness


@pytest.mark.parametrize("seed", range(2))
def test_such_a_search_is_resumed_like_any_other(tmp_path: Path, seed: int) -> None:
    evaluator = SimulatedEvaluator(3, failure_rate=0.9, starts_fail=True)
    with open_store(str(tmp_path / "whole.sqlite"), header=HEADER) as whole:
        for _ in steps(engine_on(whole, evaluations=60), evaluator):
            pass
        expected = history(whole)
    rng = np.random.default_rng(seed)
    path = str(tmp_path / "cut.sqlite")
    open_store(path, header=HEADER).close()
    ended = None
    while ended is None:
        with open_store(path, write=True) as cut:
            engine = engine_on(cut, evaluations=60)
            for _ in itertools.islice(steps(engine, evaluator), int(rng.integers(1, 30))):
                pass
            ended = engine.finished
    with open_store(path) as cut:
        assert history(cut) == expected


def failed(variant_id: str, signature: str = "") -> Evaluation:
    return Evaluation(variant_id, Status.WRONG_VALUES, Stage.GATE, "d", message="no", signature=signature)


def test_lineages_that_were_never_correct_are_given_up_and_begun_anew(store: PopulationStore) -> None:
    engine = engine_on(store, SearchSettings(islands=1, signature_limit=3))
    for number in range(3):
        (work,) = engine.ask_proposals(1)
        engine.tell_proposal(work.request.number, Proposal(render({"knob_a": number % 4, "knob_b": number}), f"idea {number}"))
        (lease,) = engine.ask_evaluations(1)
        engine.tell_evaluation(lease.token, failed(lease.item.variant.variant_id, "same"))
    trapped, restart = store.events()
    assert (trapped.kind, restart.kind, restart.variant_id) == (EventKind.TRAPPED, EventKind.RESTART, "")
    (work,) = engine.ask_proposals(1)
    assert (work.request.operator, work.request.lineage) == ("generate", restart.lineage)
    assert [note.split(" (")[0] for note in work.context.tabu] == ["idea 0", "idea 1", "idea 2"]


def test_what_was_judged_beside_nothing_is_judged_again_beside_the_first_that_passed(store: PopulationStore) -> None:
    engine = engine_on(store)
    works = engine.ask_proposals(3)
    for number, work in enumerate(works):
        engine.tell_proposal(work.request.number, Proposal(render({"knob_a": number}), "s"))
    evaluator = SimulatedEvaluator(3, failure_rate=0.0)
    leases = engine.ask_evaluations(3)
    verdicts = [evaluator.evaluate(lease.item, engine.claim) for lease in leases]
    assert engine.tell_evaluation(leases[0].token, verdicts[0])
    assert not engine.tell_evaluation(leases[1].token, verdicts[1])
    assert engine.tell_evaluation(leases[2].token, failed(leases[2].item.variant.variant_id)), "a failure is one beside anything"
    (again,) = engine.ask_evaluations(3)
    assert again.item.variant == leases[1].item.variant
    assert again.item.baseline is not None
    assert again.item.baseline.variant == leases[0].item.variant
    verdict = evaluator.evaluate(again.item, engine.claim)
    assert engine.tell_evaluation(again.token, verdict)
    assert verdict.cases[0].baseline_us == verdicts[0].cases[0].latency_us


def test_a_few_refusals_do_not_end_it(store: PopulationStore) -> None:
    engine = engine_on(store, operators=(GENERATE,))
    for number in range(10):
        (work,) = engine.ask_proposals(1)
        engine.tell_proposal(
            work.request.number, Proposal(render({}), "the same again") if number else Proposal(render({}), "first")
        )
        for lease in engine.ask_evaluations(1):
            engine.tell_evaluation(lease.token, failed(lease.item.variant.variant_id))
    assert engine.finished is None


def test_without_an_operator_that_generates_it_is_refused(store: PopulationStore) -> None:
    with pytest.raises(TaskError, match=r"toy: no starting kernel.*llm_generate"):
        engine_on(store, operators=infos())
