"""The simulated evaluator and the toy operators: deterministic, rugged, honest about what they are."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from evo.evaluation.base import Baseline, Effort, WorkItem
from evo.evaluation.simulated import CASE, Landscape, SimulatedEvaluator, merge, read_structure
from evo.records import Configuration, LatencyKind, NoProposal, Proposal, Status, TrustLevel, Variant
from evo.search.toy import FLAGS, KNOBS, LEVELS, TOY_OPERATORS, ToyCrossover, ToyRepair, genes_of, render, toy_setup
from operators.base import OperatorKind, Parent

PLAIN = Variant("toy", render({}))
BASELINE = Baseline(PLAIN, {CASE: Configuration(dict.fromkeys(KNOBS, 0))})
SPACE = 'CONFIG = {"BLOCK": 64, "num_warps": 4}\nSPACE = {"BLOCK": [64, 128, 256], "num_warps": [2, 4, 8]}\n'


def nobody(plan_hash: str, variant_id: str) -> str | None:
    return None


def random_variants(count: int) -> list[Variant]:
    rng = np.random.default_rng(0)
    drawn = [
        {**{name: int(rng.integers(LEVELS)) for name in KNOBS}, **{name: bool(rng.integers(2)) for name in FLAGS}}
        for _ in range(count)
    ]
    return [Variant("toy", render(genes)) for genes in drawn]


def test_verdicts_depend_on_seed_and_source_alone() -> None:
    items = [WorkItem(number, variant, BASELINE) for number, variant in enumerate(random_variants(20))]
    first, second = SimulatedEvaluator(1), SimulatedEvaluator(1)
    verdicts = [first.evaluate(item, nobody) for item in items]
    assert [second.evaluate(item, nobody) for item in reversed(items)] == verdicts[::-1]
    other = SimulatedEvaluator(2)
    assert [other.evaluate(item, nobody).fitness for item in items] != [verdict.fitness for verdict in verdicts]


def test_a_simulated_figure_is_marked_as_such_and_the_start_is_its_own_baseline() -> None:
    verdict = SimulatedEvaluator(1).evaluate(WorkItem(0, PLAIN, None), nobody)
    assert (verdict.trust, verdict.latency_kind) == (TrustLevel.INTERPRETED, LatencyKind.SIMULATED)
    assert verdict.device == "simulated"
    assert verdict.speedup == 1.0
    assert verdict.cases[0].pairs == 0


def test_the_asked_share_of_random_modules_fails_in_ways_that_repeat() -> None:
    evaluator = SimulatedEvaluator(5, failure_rate=0.4)
    verdicts = [evaluator.evaluate(WorkItem(0, variant, BASELINE), nobody) for variant in random_variants(400)]
    failed = [verdict for verdict in verdicts if verdict.status is not Status.PASSED]
    assert 0.2 < len(failed) / len(verdicts) < 0.6
    assert len({verdict.signature for verdict in failed}) < len(failed) / 4
    assert all(verdict.message and verdict.fitness == 0 for verdict in failed)
    never = SimulatedEvaluator(5, failure_rate=0.0)
    assert all(never.evaluate(WorkItem(0, v, BASELINE), nobody).status is Status.PASSED for v in random_variants(50))


def local_optima(epistasis: int, seed: int = 4) -> int:
    """Modules of eight flags from which no single flag raises the quality."""
    landscape = Landscape(seed, epistasis=epistasis)

    def latency(bits: int) -> float:
        return landscape.latency_us(tuple((name, bool(bits >> place & 1)) for place, name in enumerate(FLAGS)))

    return sum(all(latency(bits) < latency(bits ^ 1 << place) for place in range(8)) for bits in range(256))


def test_epistasis_makes_local_optima() -> None:
    assert local_optima(0) == 1
    assert local_optima(4) > 3


def test_equal_modules_in_other_spelling_share_a_plan_and_are_duplicates() -> None:
    evaluator, claimed = SimulatedEvaluator(1), dict[str, str]()

    def claim(plan_hash: str, variant_id: str) -> str | None:
        holder = claimed.setdefault(plan_hash, variant_id)
        return None if holder == variant_id else holder

    spelled = Variant("toy", "# a comment\n" + PLAIN.source)
    first = evaluator.evaluate(WorkItem(0, PLAIN, BASELINE), claim)
    second = evaluator.evaluate(WorkItem(1, spelled, BASELINE), claim)
    assert first.status is Status.PASSED
    assert (second.status, second.duplicate_of) == (Status.DUPLICATE, PLAIN.variant_id)


def test_a_space_is_tuned_and_a_chosen_configuration_is_used_as_it_is() -> None:
    evaluator = SimulatedEvaluator(1, failure_rate=0.0, trials=6)
    variant = Variant("toy", SPACE)
    tuned = evaluator.evaluate(WorkItem(3, variant, BASELINE), nobody)
    assert 1 < len(tuned.trials) <= 6
    best = min(tuned.trials, key=lambda trial: trial.latency_us or 0.0)
    assert tuned.cases[0].configuration == best.configuration
    chosen = Configuration({"BLOCK": 256, "num_warps": 2})
    verified = evaluator.evaluate(WorkItem(3, variant, BASELINE, Effort.VERIFY, chosen={CASE: chosen}), nobody)
    assert verified.cases[0].configuration == chosen


def test_hints_that_fit_the_space_are_tried_first() -> None:
    hint = Configuration({"BLOCK": 256, "num_warps": 8, "other": 1})
    item = WorkItem(3, Variant("toy", SPACE), BASELINE, hints=(hint,))
    verdict = SimulatedEvaluator(1, failure_rate=0.0, trials=2).evaluate(item, nobody)
    assert [dict(trial.configuration) for trial in verdict.trials][1] == {"BLOCK": 256, "num_warps": 8}


def test_a_second_measurement_has_noise_of_its_own() -> None:
    evaluator = SimulatedEvaluator(1, noise=0.1, failure_rate=0.0)
    item = WorkItem(3, random_variants(1)[0], BASELINE)
    first, again = (evaluator.evaluate(item, nobody) for _ in range(2))
    verified = evaluator.evaluate(dataclasses.replace(item, effort=Effort.VERIFY), nobody)
    assert first == again
    assert verified.speedup != first.speedup
    assert first.cases[0].speedup_low < first.speedup < first.cases[0].speedup_high


def test_a_module_that_does_not_parse_is_rejected() -> None:
    verdict = SimulatedEvaluator(1).evaluate(WorkItem(0, Variant("toy", "def f(:"), BASELINE), nobody)
    assert verdict.status is Status.REJECTED
    assert "does not parse" in verdict.message


def test_evaluations_take_the_time_they_are_told_to() -> None:
    slept: list[float] = []
    evaluator = SimulatedEvaluator(1, duration_s=2.0, sleep=slept.append)
    verdicts = [evaluator.evaluate(WorkItem(number, PLAIN, BASELINE), nobody) for number in range(50)]
    assert slept == [verdict.wall_s for verdict in verdicts]
    assert 1.5 < float(np.median(slept)) < 2.7
    assert max(slept) > 3.0
    with pytest.raises(ValueError, match="not negative"):
        SimulatedEvaluator(1, duration_s=-1)


def test_structure_counts_what_a_real_kernel_module_has() -> None:
    source = "import triton\nFAST = True\n@triton.jit\ndef kernel(x):\n    for i in range(3):\n        pass\n"
    assert read_structure(source) == {"kernels": 1, "loops": 1, "FAST": True}
    assert merge(read_structure(source), {"BLOCK": 64})[0] == ("BLOCK", 64)


@pytest.mark.parametrize("operator", TOY_OPERATORS, ids=lambda operator: operator.name)
def test_toy_operators_return_another_module_or_say_why_not(operator: ToyRepair) -> None:
    variants = random_variants(2)
    parents = tuple(Parent(variant) for variant in variants[: operator.arity])
    coroutine = operator.propose(parents, toy_setup().context, np.random.default_rng(0))
    with pytest.raises(StopIteration) as done:
        coroutine.send(None)
    outcome = done.value.value
    assert isinstance(outcome, Proposal)
    assert outcome.source not in {variant.source for variant in variants}
    assert render(genes_of(outcome.source)) == outcome.source
    if operator.kind is OperatorKind.CROSSOVER:
        genes = [genes_of(text) for text in (outcome.source, *(variant.source for variant in variants))]
        assert all(genes[0][name] in (genes[1][name], genes[2][name]) for name in genes[0])


def test_repair_and_crossover_say_when_they_do_not_apply() -> None:
    context, rng = toy_setup().context, np.random.default_rng(0)
    for operator, parents in ((ToyRepair(), (Parent(PLAIN),)), (ToyCrossover(), (Parent(PLAIN), Parent(PLAIN)))):
        with pytest.raises(StopIteration) as done:
            operator.propose(parents, context, rng).send(None)
        assert isinstance(done.value.value, NoProposal)
