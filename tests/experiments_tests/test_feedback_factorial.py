"""The factorial: which arm is given what, what a chain reaches, effects by hand, and a page that says what the figures say."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest

from evo.evaluation.base import Claim, Evaluator, WorkItem
from evo.records import CaseResult, Configuration, Evaluation, LatencyKind, Stage, Status, TrustLevel
from evo.tasks.loading import load_task, starting_sources
from experiments import feedback_factorial
from experiments.feedback_factorial import ARMS, Experiment, Turn, best_of_chains, effect, interval, markdown
from operators.models.base import Prompt
from operators.models.replaying import Answer, ReplayModel

RESULTS = Path(feedback_factorial.__file__).parent / "results" / "feedback_factorial.json"
TASK = load_task("softmax")
START = starting_sources(TASK)[0]


class Judge(Evaluator):
    """Passes what has neither of two marks."""

    device = "a judge of a test"

    def evaluate(self, item: WorkItem, claim: Claim) -> Evaluation:
        name = item.variant.variant_id
        if "UNCOMPILED" in item.variant.source:
            return Evaluation(name, Status.COMPILE_ERROR, Stage.COMPILE, self.device, message="the compiler's words")
        if "WRONG" in item.variant.source:
            return Evaluation(name, Status.WRONG_VALUES, Stage.GATE, self.device, message="the judge's words")
        case = CaseResult("c", Configuration(), 0.5, 5.0, 10.0, 2.0, 2.0, 2.0, 0, 0)
        kinds = (TrustLevel.INTERPRETED, LatencyKind.MODELLED)
        return Evaluation(name, Status.PASSED, Stage.TIME, self.device, name, *kinds, fitness=2.0, cases=(case,))

    def close(self) -> None:
        return


class GrammarReplay(ReplayModel):
    """Takes grammars, and ignores them."""

    supports_grammar = True


def answering(mark: str) -> GrammarReplay:
    """Fails with the mark at first questions, and mends it when it is shown what went wrong."""

    def answer(prompt: Prompt) -> Answer:
        told = "the compiler's words" in prompt.body or "the judge's words" in prompt.body
        return f"Strategy: x\n```python\n{START}\n\n{'MENDED' if told else mark} = {len(prompt.body)}\n```"

    return GrammarReplay(answer)


def turns(model: GrammarReplay, rounds: int = 1) -> list[Turn]:
    return asyncio.run(Experiment(model, "skeleton", Judge(), "cuda:90", 1, rounds).turns([TASK]))


@pytest.mark.parametrize(("mark", "factor"), [("UNCOMPILED", "compiler"), ("WRONG", "correctness")])
def test_feedback_of_a_kind_is_given_in_its_arms_alone(mark: str, factor: str) -> None:
    made = turns(answering(mark))
    assert len(made) == 16
    assert {turn.arm for turn in made if turn.correct} == {arm.name for arm in ARMS if getattr(arm, factor)}
    assert all(turn.compiled == (mark == "WRONG") for turn in made if turn.round == 0)
    assert all(turn.left == ("grammar" in turn.arm) for turn in made), "the model ignores grammars, which is noticed"


def test_a_chain_ends_where_it_is_correct_and_asks_anew_where_there_is_no_module() -> None:
    assert len(turns(answering("FINE"))) == 8
    model = GrammarReplay(lambda prompt: "no module")
    made = turns(model, rounds=2)
    assert len(made) == 24
    assert not any(turn.valid for turn in made)
    assert len({prompt.text for prompt in model.prompts if prompt.grammar is None}) == 3, "by round, not by arm"


def test_effects_are_differences_of_shares() -> None:
    blank = Turn("", "t", 0, 0, False, False, False, False, "", False, 0, 0.0)
    made = [
        dataclasses.replace(blank, arm=arm.name, sample=sample, valid=arm.grammar or sample == 0)
        for arm in ARMS
        for sample in range(2)
    ]
    reached = best_of_chains(made, 0)
    difference, low, high = effect(reached, "grammar", "valid")
    assert difference == pytest.approx(0.5)
    assert 0 < low < 0.5 < high < 1
    difference, low, high = effect(reached, "compiler", "valid")
    assert (difference, low) == (0.0, pytest.approx(-high))
    low, high = interval(5, 10)
    assert (round(low, 3), round(high, 3)) == (0.237, 0.763)
    assert interval(0, 0) == (0.0, 1.0)


def test_the_committed_page_is_what_the_figures_give() -> None:
    results = json.loads(RESULTS.read_text())
    assert RESULTS.with_suffix(".md").read_text() == markdown(results)
    assert {turn["arm"] for turn in results["turns"]} == {arm.name for arm in ARMS}
