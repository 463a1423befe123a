"""Policies beside each other on a scripted model: the model reads our prompts, searches repeat, and the page says what the figures say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import evo.tasks
from evo.evaluation.base import WorkItem
from evo.evaluation.simulated import SimulatedEvaluator
from evo.records import Evaluation, NoProposal, Proposal, Stage, Status, Variant
from evo.registry import find_operators
from evo.search.toy import render
from experiments import llm_side_by_side
from experiments.llm_policies import POOL, REPAIRS, GeakLoop, MendedGeakLoop, OpenEvolveLoop, Policy, Question, child_of, latency
from experiments.scripted_model import Faults, ScriptedModel, finished, rewrite_answer, toy_answer
from operators.base import Context, Operator, Parent

RESULTS = Path(llm_side_by_side.__file__).parent / "results"
GOOD = Faults(0.0, 0.0, 0.0)
SOFTMAX = (Path(evo.tasks.__path__[0]) / "starts" / "softmax.py").read_text()
CONTEXT = Context("toy", "Return the argument.", "toy", "def toy(x): return x", frozenset(), "cuda:90", "3.9.0")


def ask(cls: type[Operator], model: ScriptedModel, sources: tuple[str, ...], context: Context = CONTEXT) -> Proposal | NoProposal:
    build: type = cls
    parents = tuple(Parent(Variant(context.task, source)) for source in sources)
    outcome = finished(build(model=model), parents, context, np.random.default_rng(0))
    assert isinstance(outcome, Proposal | NoProposal)
    return outcome


@pytest.mark.parametrize("cls", llm_side_by_side.OPERATORS, ids=lambda cls: cls.name)
def test_the_scripted_model_understands_every_prompt_and_answers_alike_every_time(cls: type[Operator]) -> None:
    letters = "abcdefgh"
    sources = tuple(render({f"knob_{letter}": 1 + number for letter in letters}) for number in range(cls.arity))
    first, second = (ask(cls, ScriptedModel(toy_answer, faults=GOOD), sources) for _ in range(2))
    assert first == second
    assert isinstance(first, Proposal)
    assert first.source not in sources
    assert first.strategy.startswith(cls.name.removeprefix("llm_"))
    assert first.exchanges[0].usage.dollars > 0


def test_a_broken_module_is_mended_in_one_more_turn_and_paid_for() -> None:
    model = ScriptedModel(toy_answer, faults=Faults(0.0, 0.0, 1.0))
    outcome = ask(llm_side_by_side.LlmOptimize, model, (render({}),))
    assert isinstance(outcome, Proposal)
    assert len(outcome.exchanges) == 2
    assert outcome.exchanges[1].usage.dollars < outcome.exchanges[0].usage.dollars


def test_it_answers_for_real_kernels_from_the_rewrites() -> None:
    rules = [cls() for cls in find_operators().values() if not cls.needs_model]
    context = Context("softmax", "Softmax.", "softmax", "", frozenset(), "cuda:90", "3.9.0")
    outcome = ask(llm_side_by_side.LlmOptimize, ScriptedModel(rewrite_answer(rules), faults=GOOD), (SOFTMAX,), context)
    assert isinstance(outcome, Proposal)
    assert "def softmax(" in outcome.source
    assert outcome.source != SOFTMAX


def child(number: int, status: Status = Status.PASSED) -> Parent:
    variant = Variant("toy", render({"knob_a": number % 4, "knob_b": number // 4}))
    if status is not Status.PASSED:
        return child_of(variant, Evaluation(variant.variant_id, status, Stage.GATE, "d", message="m"), "s")
    evaluator = SimulatedEvaluator(1, failure_rate=0.0)
    return child_of(variant, evaluator.evaluate(WorkItem(0, variant, None), lambda *_: None), "s")


def fail(policy: Policy, times: int) -> Question:
    for number in range(times):
        policy.tell(policy.ask(), child(number, Status.WRONG_VALUES))
    return policy.ask()


def test_geak_repairs_what_was_never_correct_without_end_unless_mended() -> None:
    assert fail(GeakLoop(np.random.default_rng(0)), 3 * REPAIRS).operator == "llm_repair"
    assert fail(MendedGeakLoop(np.random.default_rng(0)), 1 + REPAIRS).operator == "llm_generate"


def test_geak_gives_up_a_descendant_after_its_repairs() -> None:
    policy = GeakLoop(np.random.default_rng(0))
    policy.tell(policy.ask(), child(1))
    assert policy.ask().operator == "llm_optimize"
    policy.tell(policy.ask(), child(2, Status.WRONG_VALUES))
    for _ in range(REPAIRS):
        question = policy.ask()
        assert (question.operator, question.reflect) == ("llm_repair", True)
        policy.tell(question, None)
    assert policy.ask().operator == "llm_optimize"


def test_a_full_pool_of_geak_loses_its_best_unless_mended() -> None:
    programs = [child(number) for number in range(POOL + 1)]
    fastest = min(programs[:POOL], key=latency)
    for cls, kept in ((GeakLoop, False), (MendedGeakLoop, True)):
        policy = cls(np.random.default_rng(0))
        for program in programs:
            policy.tell(policy.ask(), program)
        shown = {parent.variant.variant_id for parent in policy.ask().history}
        assert (fastest.variant.variant_id in shown) == kept
        assert len(shown) == POOL


def test_openevolve_shows_the_error_of_a_failed_parent_and_abandons_nothing() -> None:
    policy = OpenEvolveLoop(np.random.default_rng(0))
    assert policy.ask().operator == "llm_generate"
    policy.tell(policy.ask(), child(0, Status.WRONG_VALUES))
    assert {policy.ask().operator for _ in range(20)} == {"llm_repair"}
    for number in range(1, 30):
        policy.tell(policy.ask(), child(number))
    used = {policy.ask().operator for _ in range(200)}
    assert used == {"llm_optimize", "llm_repair"}, "the failed program stays and is drawn now and then"


def test_a_small_run_writes_figures_and_a_page_and_repeats_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pages = []
    for name in ("first", "second"):
        llm_side_by_side.main(["--seeds", "1", "--evaluations", "15", "--out", str(tmp_path / name)])
        pages.append((tmp_path / name / "llm_side_by_side.md").read_text())
    assert pages[0] == pages[1]
    assert pages[0].strip() in capsys.readouterr().out
    results = json.loads((tmp_path / "first" / "llm_side_by_side.json").read_text())
    for figures in results["arms"].values():
        assert figures["evaluations"] == [15]
        assert figures["dollars"][0] > 0
    assert results["arms"]["ours"]["repeated_evaluations"] == [0]


def test_ratios_are_paired_by_seed() -> None:
    found = llm_side_by_side.compare([1.0, 2.0, 4.0], [1.1, 2.2, 4.4])
    assert found == pytest.approx((1.1, 1.1, 1.1))
    assert llm_side_by_side.compare([1.0, None], [1.5, 1.0]) == pytest.approx((1.5, 1.5, 1.5))
    assert llm_side_by_side.compare([None], [1.0]) is None


def test_the_committed_page_is_made_of_the_committed_figures() -> None:
    results = json.loads((RESULTS / "llm_side_by_side.json").read_text())
    assert (RESULTS / "llm_side_by_side.md").read_text() == llm_side_by_side.markdown(results)
    assert (results["tier"], results["model"]) == ("simulated", "scripted")
