"""What a search does for operators that ask models: beginning anew, exploring, samples, lessons, what traps cost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from evo.cluster.proposing import propose
from evo.evaluation.simulated import SimulatedEvaluator
from evo.records import (
    CaseResult,
    Configuration,
    Evaluation,
    EventKind,
    Exchange,
    LatencyKind,
    NoProposal,
    Proposal,
    Stage,
    Status,
    TrustLevel,
    Usage,
    geometric_mean,
)
from evo.search.engine import Engine, ProposalWork
from evo.search.settings import Budget, SearchSettings
from evo.search.setup import OperatorInfo
from evo.search.toy import render, toy_setup
from operators.base import OperatorKind
from population_store.base import PopulationStore, RunHeader
from population_store.opening import open_store

OPTIMIZE = OperatorInfo("optimize", OperatorKind.MUTATION, 1, needs_model=True)
REPAIR = OperatorInfo("repair", OperatorKind.REPAIR, 1, needs_model=True)
EXPLORE = OperatorInfo("explore", OperatorKind.EXPLORE, 1, needs_model=True)
RESTART = OperatorInfo("restart", OperatorKind.RESTART, 1, needs_model=True)
GENERATE = OperatorInfo("generate", OperatorKind.GENERATE, 0, needs_model=True)
CROSS = OperatorInfo("cross", OperatorKind.CROSSOVER, 2, needs_model=True)
RULE = OperatorInfo("rule", OperatorKind.MUTATION)
ONE = SearchSettings(islands=1, crossover_share=0.0, repair_share=1.0, explore_share=0.0, signature_limit=99)


def exchange(reply: str = "Strategy: s.\nLesson: l.", dollars: float = 0.25) -> Exchange:
    return Exchange("m", "p", "t", "prompt", reply, "end_turn", "r", 1.0, Usage(dollars=dollars))


class Desk:
    """Answers an engine by hand; every new module differs from all before."""

    def __init__(self, store: PopulationStore, settings: SearchSettings, *operators: OperatorInfo) -> None:
        self.store = store
        self.engine = Engine(
            seed=3,
            settings=settings,
            budget=Budget(),
            tasks=[toy_setup()],
            operators=operators,
            store=store,
            clock=lambda: 0.0,
        )
        self._made = 0
        if leases := self.engine.ask_evaluations(1):
            self.engine.tell_evaluation(leases[0].token, SimulatedEvaluator(3).evaluate(leases[0].item, self.engine.claim))

    def ask(self) -> ProposalWork:
        (work,) = self.engine.ask_proposals(1)
        return work

    def refuse(self, work: ProposalWork) -> None:
        self.engine.tell_proposal(work.request.number, NoProposal("refused", True, (exchange("no"),)))

    def answer(self, work: ProposalWork, strategy: str = "s", reply: str = "Strategy: s.") -> str:
        self._made += 1
        genes = {f"knob_{letter}": (self._made >> 2 * place) & 3 for place, letter in enumerate("abcd")}
        self.engine.tell_proposal(work.request.number, Proposal(render(genes), strategy, (exchange(reply),)))
        (lease,) = self.engine.ask_evaluations(1)
        self._lease = lease
        return lease.item.variant.variant_id

    def fail(self, work: ProposalWork, strategy: str = "s", reply: str = "Strategy: s.", signature: str = "") -> str:
        variant_id = self.answer(work, strategy, reply)
        verdict = Evaluation(variant_id, Status.COMPILE_ERROR, Stage.COMPILE, "d", message="m", signature=signature)
        self.engine.tell_evaluation(self._lease.token, verdict)
        return variant_id

    def judge(self, work: ProposalWork, *latencies: float) -> None:
        """A correct child with these latencies, one per case."""
        variant_id = self.answer(work)
        cases = tuple(
            CaseResult(f"case {place}", Configuration(), 0.5, latency, 10.0, 10 / latency, 10 / latency, 10 / latency, 0, 0)
            for place, latency in enumerate(latencies)
        )
        trust, kind = TrustLevel.INTERPRETED, LatencyKind.SIMULATED
        fitness = geometric_mean([case.speedup for case in cases])
        verdict = Evaluation(variant_id, Status.PASSED, Stage.TIME, "d", variant_id, trust, kind, fitness=fitness, cases=cases)
        self.engine.tell_evaluation(self._lease.token, verdict)

    def run(self, work: ProposalWork, strategy: str) -> Evaluation:
        self.answer(work, strategy)
        verdict = SimulatedEvaluator(3, failure_rate=0.0).evaluate(self._lease.item, self.engine.claim)
        self.engine.tell_evaluation(self._lease.token, verdict)
        return verdict


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PopulationStore]:
    header = RunHeader("test", 1, "{}", "{}", "{}", "2026-01-01T00:00:00+00:00")
    with open_store(str(tmp_path / "run.sqlite"), header=header) as opened:
        yield opened


def trap(desk: Desk) -> None:
    """Five repairs in vain of one failure."""
    desk.fail(desk.ask())
    for number in range(4):
        work = desk.ask()
        assert work.request.operator == "repair"
        desk.fail(work, f"repair {number}")


@pytest.mark.parametrize("beginner", [RESTART, GENERATE], ids=["restart", "generate"])
def test_a_lineage_begins_anew_by_the_operator_for_that(store: PopulationStore, beginner: OperatorInfo) -> None:
    desk = Desk(store, ONE, OPTIMIZE, REPAIR, beginner)
    trap(desk)
    events = store.events()
    assert [event.kind for event in events] == [EventKind.TRAPPED, EventKind.RESTART]
    assert "it cost $1.2500, of it $1.2500 since its last gain" in events[0].reason
    work = desk.ask()
    assert work.request.operator == beginner.name
    assert work.request.lineage == events[1].lineage
    assert work.request.parents == ((events[1].variant_id,) if beginner is RESTART else ())
    assert len(work.parents) == beginner.arity
    assert any(note.startswith("repair 3 (given up: ") for note in work.context.tabu)
    desk.fail(work, "a new idea")
    following = desk.ask()
    assert following.request.operator == "repair", "a failed beginning is repaired like any failure"
    assert following.request.lineage == events[1].lineage


def test_a_beginning_that_comes_to_nothing_is_tried_a_few_times_only(store: PopulationStore) -> None:
    desk = Desk(store, ONE, OPTIMIZE, REPAIR, RESTART)
    trap(desk)
    used = []
    for _ in range(4):
        work = desk.ask()
        used.append(work.request.operator)
        desk.refuse(work)
    assert used == ["restart"] * 3 + ["optimize"]


def test_a_beginning_is_asked_for_once_at_a_time(store: PopulationStore) -> None:
    desk = Desk(store, ONE, OPTIMIZE, REPAIR, RESTART)
    trap(desk)
    works = desk.engine.ask_proposals(4)
    assert [work.request.operator for work in works] == ["restart", "optimize", "optimize", "optimize"]


def test_generated_modules_go_on_like_any_other(store: PopulationStore) -> None:
    desk = Desk(store, ONE, OPTIMIZE, REPAIR, GENERATE)
    trap(desk)
    work = desk.ask()
    assert work.request.operator == "generate"
    verdict = desk.run(work, "from nothing")
    assert verdict.status is Status.PASSED
    assert desk.engine.progress().tasks[0].passed == 2
    gained = verdict.fitness > 1
    assert desk.ask().context.worked == ((f"from nothing (+{verdict.fitness - 1:.1%})",) if gained else ())


def test_repairs_that_give_nothing_count_against_the_lineage(store: PopulationStore) -> None:
    desk = Desk(store, ONE, OPTIMIZE, REPAIR)
    desk.fail(desk.ask())
    repairs = 0
    while not store.events():
        work = desk.ask()
        repairs += work.request.operator == "repair"
        if repairs % 2:
            desk.refuse(work)
        else:
            desk.fail(work)
    assert store.events()[0].kind is EventKind.TRAPPED
    assert "5 repairs in vain" in store.events()[0].reason
    assert repairs == 5


def test_no_more_repairs_are_under_way_than_may_be_in_vain(store: PopulationStore) -> None:
    desk = Desk(store, SearchSettings(islands=1, crossover_share=0.0, repair_share=0.0, signature_limit=99), OPTIMIZE)
    for _ in range(9):
        desk.fail(desk.ask())
    eager = SearchSettings(islands=1, crossover_share=0.0, repair_share=1.0, signature_limit=99)
    works = Desk(store, eager, OPTIMIZE, REPAIR).engine.ask_proposals(20)
    assert [work.request.operator for work in works].count("repair") == 5


def test_parents_that_are_crossed_have_different_strengths(store: PopulationStore) -> None:
    settings = SearchSettings(islands=1, crossover_share=1.0, repair_share=0.0, explore_share=0.0)
    desk = Desk(store, settings, OPTIMIZE, CROSS)
    for left, right in ((2.0, 4.0), (4.0, 2.0), (4.1, 4.1), (4.2, 4.2), (4.3, 4.3), (4.4, 4.4)):
        desk.judge(desk.ask(), left, right)
    latencies = {row.variant.variant_id: tuple(case.latency_us for case in row.search.cases) for row in store.ranking("toy")}
    works = desk.engine.ask_proposals(12)
    assert {work.request.operator for work in works} == {"cross"}
    crossed = [tuple(latencies[parent] for parent in work.request.parents) for work in works]
    unequal = [pair for pair in crossed if pair[0] in ((2.0, 4.0), (4.0, 2.0))]
    assert unequal
    assert all(sorted(pair) == [(2.0, 4.0), (4.0, 2.0)] for pair in unequal), "the one is fast where the other is slow"


def test_a_request_for_an_operator_that_is_gone_fails_alone(store: PopulationStore) -> None:
    work = Desk(store, ONE, OPTIMIZE).ask()
    outcome = asyncio.run(propose({}, work))
    assert outcome == NoProposal("there is no operator optimize in this version", failed=True)


def test_exploring_has_its_share(store: PopulationStore) -> None:
    settings = SearchSettings(islands=1, crossover_share=0.0, repair_share=0.0, explore_share=0.5)
    desk = Desk(store, settings, OPTIMIZE, EXPLORE)
    used = [work.request.operator for work in desk.engine.ask_proposals(40)]
    assert 10 <= used.count("explore") <= 30


def test_samples_ask_the_same_in_a_row_with_other_randomness(store: PopulationStore) -> None:
    settings = SearchSettings(islands=1, crossover_share=0.0, repair_share=0.0, samples=3)
    desk = Desk(store, settings, OPTIMIZE, EXPLORE)
    works = desk.engine.ask_proposals(9)
    groups = [works[start : start + 3] for start in (0, 3, 6)]
    for group in groups:
        assert len({(work.request.operator, work.request.parents, work.request.lineage) for work in group}) == 1
        assert len({work.seed for work in group}) == 3


def test_repairs_are_not_sampled(store: PopulationStore) -> None:
    desk = Desk(store, ONE, OPTIMIZE)
    for _ in range(3):
        desk.fail(desk.ask())
    settings = SearchSettings(islands=1, crossover_share=0.0, repair_share=1.0, signature_limit=99, samples=3)
    works = Desk(store, settings, OPTIMIZE, REPAIR).engine.ask_proposals(6)
    assert [work.request.operator for work in works] == ["repair"] * 3 + ["optimize"] * 3


def test_rules_are_not_sampled(store: PopulationStore) -> None:
    settings = SearchSettings(islands=3, crossover_share=0.0, repair_share=0.0, samples=3)
    desk = Desk(store, settings, RULE)
    assert [work.request.island for work in desk.engine.ask_proposals(3)] == [0, 1, 2]


def test_lessons_go_to_descendants_and_to_the_lineage_that_follows(store: PopulationStore) -> None:
    desk = Desk(store, ONE, OPTIMIZE, REPAIR, RESTART)
    first = desk.ask()
    assert first.context.lessons == ()
    desk.fail(first, reply="Strategy: s.\nLesson: there are no block pointers.")
    second = desk.ask()
    assert second.context.lessons == ("there are no block pointers.",)
    desk.fail(second, reply="Strategy: s.\nLesson: masks need an other.")
    for _ in range(3):
        desk.fail(desk.ask(), reply="Strategy: s.\nLesson: there are no block pointers.")
    begun = desk.ask()
    assert begun.request.operator == "restart"
    assert begun.context.lessons == ("masks need an other.", "there are no block pointers.")


def test_a_resumed_search_knows_lessons_and_what_worked(store: PopulationStore) -> None:
    desk = Desk(store, ONE, OPTIMIZE, REPAIR)
    for number in range(6):
        work = desk.ask()
        if number % 2:
            desk.fail(work, reply=f"Lesson: {number}.")
        else:
            desk.run(work, f"idea {number}")
    before = desk.ask()
    again = Desk(store, ONE, OPTIMIZE, REPAIR).ask()
    assert again.context == before.context
    assert again.context.lessons
