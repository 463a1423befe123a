"""Random outputs are judged by tests with a proven bound on false alarms: dropout and sampling, honest and forged."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from evo.evaluation.base import Effort
from evo.evaluation.draws import choose_draws
from evo.evaluation.inputs import make_inputs
from evo.evaluation.judge import Judge
from evo.evaluation.oracle import flatten_outputs
from evo.evaluation.tolerance import Verdict
from evo.records import Failure, Status
from evo.tasks.base import Case, Task, TensorSpec
from evo.tasks.draws import Draw
from evo.tasks.random_tests import FALSE_ALARM, Finding, always, category_shares, kept_share, refused
from evo.tasks.text import task_text

DROP = 0.25
SEED = TensorSpec((1,), "int64", "integers", low=0, high=1 << 40)


def dropout(x: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
    kept = torch.rand(x.shape, generator=torch.Generator().manual_seed(int(seed))) >= DROP
    return torch.where(kept, x / (1 - DROP), 0.0)


def test_of_dropout(arguments: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> Iterable[Finding]:
    x, y = arguments[0], outputs[0]
    scaled = x / (1 - DROP)
    kept = y == scaled
    yield always("an element is kept and scaled, or zero", kept | (y == 0))
    yield from kept_share("kept elements", kept & (scaled != 0), 1 - DROP)


test_of_dropout.__test__ = False  # type: ignore[attr-defined]


def stochastic(reference: Callable[..., Any], statistic: Any, *arguments: TensorSpec) -> Task:
    cases = [Case(name, arguments, bytes=1, flops=1) for name in ("small", "training")]
    return Task(
        "random",
        "",
        "entry",
        reference,
        (cases[1],),
        (),
        (cases[0],),
        ("def entry(): ...\n",),
        oracle="stochastic",
        statistic=statistic,
    )


DROPOUT = stochastic(dropout, test_of_dropout, TensorSpec((64, 512), "float32", "uniform", low=0.5, high=1.0), SEED)


def judged(task: Task, kernel: Callable[..., Any], draws: int = 3) -> Verdict | Failure:
    judge, case = Judge(), task.small_cases[0]
    verdict: Verdict | Failure = Verdict(0.0, "")
    for draw in range(draws):
        outputs = kernel(*make_inputs(task, case, draw, "cpu").arguments)
        verdict = judge.judge(task, case, Draw(draw), flatten_outputs(outputs))
        if isinstance(verdict, Failure):
            return verdict
    return verdict


def masked(x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    return torch.where(kept, x / (1 - DROP), 0.0)


def own_random(x: torch.Tensor, seed: torch.Tensor, share: float = 1 - DROP) -> torch.Tensor:
    return torch.rand(x.shape, generator=torch.Generator().manual_seed(int(seed) ^ 0xABCDEF)) < share


def test_dropout_by_another_generator_passes() -> None:
    assert isinstance(judged(DROPOUT, lambda x, seed: masked(x, own_random(x, seed)), 12), Verdict)


FORGED: dict[str, tuple[Callable[..., torch.Tensor], str]] = {
    "too many": (lambda x, seed: masked(x, own_random(x, seed, 0.77)), "expected a share"),
    "all kept": (lambda x, seed: x / (1 - DROP), "expected a share"),
    "unscaled": (lambda x, seed: torch.where(own_random(x, seed), x, 0.0), "kept and scaled"),
    "zeros": (lambda x, seed: torch.zeros_like(x), "expected a share"),
    "nan": (lambda x, seed: torch.full_like(x, float("nan")), "kept and scaled"),
    "every fourth": (lambda x, seed: masked(x, (torch.arange(512) % 4 > 0).expand(64, 512)), "per column|neighbours"),
    "one mask for all rows": (lambda x, seed: masked(x, own_random(x[:1], seed).expand(64, 512)), "per column|neighbours"),
    "one draw per pair": (
        lambda x, seed: masked(x, own_random(x[:, ::2], seed).repeat_interleave(2, dim=1)),
        "neighbours 1 apart",
    ),
    "the seed left out": (lambda x, seed: masked(x, own_random(x, torch.tensor(1))), "does the seed count"),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_dropout_fails_by_the_test_that_is_about_it(name: str) -> None:
    kernel, text = FORGED[name]
    verdict = judged(DROPOUT, kernel)
    assert isinstance(verdict, Failure), name
    assert verdict.status is Status.WRONG_VALUES
    assert any(part in verdict.message for part in text.split("|")), verdict.message


def test_structure_is_judged_first() -> None:
    verdict = judged(DROPOUT, lambda x, seed: dropout(x, seed).double())
    assert isinstance(verdict, Failure)
    assert verdict.status is Status.WRONG_STRUCTURE


def sample(probabilities: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
    rows = probabilities / probabilities.sum(1, keepdim=True)
    return torch.multinomial(rows, 1, generator=torch.Generator().manual_seed(int(seed)))[:, 0]


def statistic_of_sampling(arguments: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> Iterable[Finding]:
    probabilities = arguments[0] / arguments[0].sum(1, keepdim=True)
    return category_shares("samples", outputs[0], probabilities)


SAMPLING = stochastic(sample, statistic_of_sampling, TensorSpec((4000, 30), "float32", "uniform", low=0.0, high=1.0), SEED)


def test_sampling_passes_and_greedy_biased_and_foreign_categories_fail() -> None:
    assert isinstance(judged(SAMPLING, lambda p, seed: sample(p, seed ^ 5), 12), Verdict)
    greedy = judged(
        stochastic(sample, statistic_of_sampling, TensorSpec((4000, 2), "float32", "ones"), SEED), lambda p, s: p.argmax(1)
    )
    biased = judged(SAMPLING, lambda p, seed: sample(p.index_fill(1, torch.tensor([3]), 0.0), seed))
    foreign = judged(SAMPLING, lambda p, seed: torch.full((4000,), 30))
    for verdict in (greedy, biased, foreign):
        assert isinstance(verdict, Failure)
    assert "category 3 drawn 0 of 4000" in biased.message  # type: ignore[union-attr]
    assert "lie in [0, 30)" in foreign.message  # type: ignore[union-attr]


def test_the_bound_on_false_alarms_holds_far_from_its_limit() -> None:
    # At a level of 1e-3 instead of 1e-6, 1000 honest calls must show about one refusal at most: bounds are no estimates.
    generator = torch.Generator().manual_seed(0)
    refusals = 0
    for _ in range(1000):
        findings = list(kept_share("kept", torch.rand(20, 33, generator=generator) < 0.9, 0.9))
        refusals += min(finding.probability for finding in findings) < 1e-3 / len(findings)
    assert refusals <= 3
    assert refused([Finding("", FALSE_ALARM), Finding("", 1.0)]) is None
    assert refused([Finding("", FALSE_ALARM / 3), Finding("", 1.0)]) is not None


def test_random_tasks_are_drawn_twice_and_say_what_is_asked() -> None:
    for case in (*DROPOUT.small_cases, *DROPOUT.training_cases):
        for compiled in (True, False):
            for task in (DROPOUT, dataclasses.replace(DROPOUT, variations=frozenset())):
                assert len(choose_draws(task, case, Effort.SEARCH, compiled)) >= 2
    assert "statistical tests" in task_text(DROPOUT)
    with pytest.raises(ValueError, match="statistic"):
        Task("t", "", "t", dropout, DROPOUT.training_cases, (), DROPOUT.small_cases, (), oracle="stochastic")
