"""The guess before any trial: facts of real traces, their extension to a whole space, and what a tuner makes of them."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable

import numpy as np
import pytest

from evo.evaluation.tuning import Tuner
from evo.evaluation.tuning_facts import Facts, facts_of
from evo.evaluation.tuning_prior import TERMS, UNFIT, Prior, guessed, probes
from evo.evaluation.tuning_space import KnobSpace
from evo.knobs import read_knobs
from evo.records import Configuration, KnobValue
from evo.tasks.loading import load_task, starting_sources
from evo.tracing.plan import LaunchPlan
from evo.tracing.targets import TARGETS
from evo.tracing.tracer import Tracer

TARGET = TARGETS["cuda:90"]
SPACE: dict[str, tuple[KnobValue, ...]] = {
    "BLOCK_M": (16, 32, 64, 128, 256),
    "BLOCK_N": (16, 32, 64, 128, 256),
    "BLOCK_K": (16, 32, 64, 128),
    "num_warps": (1, 2, 4, 8),
    "num_stages": (1, 2, 3, 4, 5),
    "flag": (False, True),
}
DEFAULT = Configuration({"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16, "num_warps": 1, "num_stages": 1, "flag": False})


def product_facts(configuration: Configuration) -> Facts:
    """Of a product of square matrices of 4096."""
    m, n, k, warps, stages = (
        float(str(configuration[name])) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages")
    )
    programs, operands = (4096 / m) * (4096 / n), (m + n) * k * 2
    return Facts(
        programs,
        32 * warps,
        max(m, n) * k * 2,
        operands,
        stages,
        m * n,
        programs * operands * 4096 / k,
        m,
        n,
        k,
        2,
    )


def shared_bytes(configuration: Configuration) -> float:
    facts = product_facts(configuration)
    return (facts.m + facts.n) * facts.k * facts.width * facts.stages


def guess_of(space: KnobSpace) -> Prior:
    return Prior(space, {item: product_facts(item) for item in probes(space)}, TARGET)


def test_probes_change_one_knob_at_a_time() -> None:
    space = KnobSpace(SPACE, DEFAULT)
    found = probes(space)
    assert found[0] == DEFAULT
    assert len(found) == len(set(found)) == 12
    assert all(sum(item[name] != DEFAULT[name] for name in SPACE) == 1 for item in found[1:])
    assert {item["BLOCK_M"] for item in found} == {16, 64, 256}


def test_a_few_probes_tell_the_facts_of_the_whole_space() -> None:
    """Choices between probes lie between them; sums of tiles are the one thing that logarithms only come near."""
    space = KnobSpace(SPACE, DEFAULT)
    rows = list(itertools.product(*map(range, space.counts)))
    exact = Prior(space, {space.configuration(row): product_facts(space.configuration(row)) for row in rows}, TARGET)
    near, whole = guess_of(space).terms(rows), exact.terms(rows)
    assert near.shape == (len(rows), len(TERMS))
    assert near.min() >= 0
    assert float(np.abs(near.sum(axis=1) - whole.sum(axis=1)).max()) < 0.4
    truth = np.asarray([shared_bytes(space.configuration(row)) <= TARGET.max_shared_bytes for row in rows])
    assert float(((guess_of(space).fits(rows) == 1.0) == truth).mean()) == 1.0


def test_what_is_known_of_products_is_in_the_guess() -> None:
    space = KnobSpace(SPACE, DEFAULT)
    good = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3, "flag": False}
    worse = [
        {"BLOCK_M": 16, "BLOCK_N": 16},
        {"num_warps": 1},
        {"num_stages": 1},
        {"BLOCK_N": 256, "BLOCK_M": 256, "num_warps": 4},
    ]
    rows = [space.codes(Configuration({**good, **change})) for change in ({}, *worse)]
    losses = guess_of(space).terms(rows).sum(axis=1)
    assert losses[0] < 0.5
    assert all(loss > losses[0] + 0.1 for loss in losses[1:])


def terms_of(name: str, values: tuple[KnobValue, ...], facts: Callable[[float], Facts]) -> list[dict[str, float]]:
    """The terms of each value of one knob."""
    space = KnobSpace({name: values}, Configuration({name: values[0]}))
    found = {Configuration({name: value}): facts(float(str(value))) for value in values}
    rows = Prior(space, found, TARGET).terms([(code,) for code in range(len(values))])
    return [dict(zip(TERMS, map(float, row), strict=True)) for row in rows]


def streaming_facts(**changes: float) -> Facts:
    """Of a kernel that reads rows of 64 kB, 4 kB at a time, and writes them."""
    plain = {"programs": 4096, "threads": 128, "tile": 4096, "round": 4096, "stages": 1, "live": 1024, "asked": 4096 * 128e3}
    return Facts(**{**plain, "m": 1, "n": 1, "k": 1, "width": 1, **changes})


def test_what_just_meets_a_limit_is_not_counted_as_missing_it() -> None:
    """64 rows are what a tensor core's instruction takes, and 1056 programs fill 132 SMs eight times, whatever a logarithm says."""
    smaller, enough = terms_of(
        "M", (63, 64), lambda m: dataclasses.replace(product_facts(DEFAULT), m=m, n=128, k=64, threads=128)
    )
    assert smaller["tensor"] > enough["tensor"] + 0.25
    full, one_more = terms_of("P", (1056, 1057), lambda programs: streaming_facts(programs=programs))
    assert full["idle"] == pytest.approx(0.0, abs=1e-6)
    assert one_more["idle"] > 0.05


def test_a_plain_loop_has_one_stage_less_under_way_than_it_asks_for_and_pays_for_them() -> None:
    one, two, three = terms_of("stages", (1, 2, 3), lambda stages: streaming_facts(stages=stages))
    assert two["flight"] == pytest.approx(one["flight"])
    assert three["flight"] < two["flight"]
    assert one["staged"] < two["staged"] == three["staged"]


def test_rows_that_are_read_twice_want_few_programs_beside_each_other() -> None:
    many, few = terms_of("num_warps", (4, 16), lambda warps: streaming_facts(threads=32 * warps, kept=64e3, asked=4096 * 192e3))
    assert many["evicted"] > few["evicted"] + 0.1
    once = terms_of("num_warps", (4, 16), lambda warps: streaming_facts(threads=32 * warps))
    assert once[0]["evicted"] == 0.0


def test_more_warps_than_a_product_has_rows_for_are_a_loss() -> None:
    fitting, crowded = terms_of(
        "num_warps", (4, 8), lambda warps: dataclasses.replace(product_facts(DEFAULT), m=64, threads=32 * warps)
    )
    assert crowded["tensor"] > fitting["tensor"]


def test_what_no_block_can_hold_is_known_before_it_is_compiled() -> None:
    space = KnobSpace({"BLOCK": (8, 16)}, Configuration({"BLOCK": 8}))
    wide = {item: streaming_facts(widest=128 * 128 * int(str(item["BLOCK"]))) for item in probes(space)}
    assert list(Prior(space, wide, TARGET).fits([(0,), (1,)])) == [1.0, UNFIT], "2048 bytes a thread are not compiled"
    ahead = {item: streaming_facts(stages=4, round=8192 * int(str(item["BLOCK"]))) for item in probes(space)}
    assert list(Prior(space, ahead, TARGET).fits([(0,), (1,)])) == [1.0, UNFIT], "three rounds of 128 kB outgrow shared memory"


def test_with_a_guess_the_first_trials_are_worth_more() -> None:
    def latency_us(item: Configuration) -> float | None:
        """The truth disagrees with the guess about pipelines, and depends on a flag that the guess knows nothing of."""
        facts = product_facts(item)
        if shared_bytes(item) > TARGET.max_shared_bytes:
            return None
        off = abs(math.log2(facts.m / 128)) + abs(math.log2(facts.n / 64)) + 0.5 * abs(math.log2(facts.threads / 128))
        return 100.0 * float(1.4**off) * (1.0 if item["flag"] else 1.1) * (1 + 0.05 * abs(facts.stages - 2))

    def best(seed: int, guess: Prior | None) -> float:
        tuner = Tuner(SPACE, DEFAULT, [], 5, seed, guess=guess)
        while (item := tuner.ask()) is not None:
            latency = latency_us(item)
            tuner.tell(item, latency, latency is not None)
        assert tuner.best is not None
        return tuner.best[1]

    guess = guess_of(KnobSpace(SPACE, DEFAULT))
    with_it, without = (statistics.median(best(seed, item) for seed in range(5)) for item in (guess, None))
    assert with_it < 0.8 * without


def test_a_guess_that_is_wrong_everywhere_is_overcome() -> None:
    """The truth is the contrary of the guess."""
    space = KnobSpace({name: SPACE[name] for name in ("BLOCK_M", "BLOCK_N", "num_warps")}, DEFAULT)
    guess = guess_of(space)
    rows = list(itertools.product(*map(range, space.counts)))
    losses = dict(zip(rows, guess.terms(rows).sum(axis=1), strict=True))
    truth = {space.configuration(row): 100 * math.exp(-0.5 * loss) for row, loss in losses.items()}
    tuner = Tuner({name: space.choices[name] for name in space.names}, DEFAULT, [], 24, 0, guess=guess)
    while (item := tuner.ask()) is not None:
        tuner.tell(item, truth[item], True)
    assert tuner.best is not None
    assert sorted(truth.values()).index(tuner.best[1]) < 5


def test_facts_are_read_from_real_traces() -> None:
    task = load_task("gemm_bias_gelu")
    (source,) = starting_sources(task)
    case = task.case("4096x4096x1024")
    knobs = read_knobs(source)
    tracer = Tracer("cuda:90")
    try:
        other = Configuration({**knobs.default, "BLOCK_M": 64, "num_warps": 4})
        traced = tracer.trace_each(source, task, [(case, knobs.default), (case, other)])
    finally:
        tracer.close()
    plans = {conf: plan for conf, plan in zip((knobs.default, other), traced, strict=True) if isinstance(plan, LaunchPlan)}
    first, second = (facts_of(plan) for plan in plans.values())
    assert first is not None
    assert second is not None
    assert (first.programs, first.threads, first.m, first.n, first.k, first.stages) == (1024, 256, 128, 128, 32, 3)
    assert first.width == 2
    assert first.live == pytest.approx(128 * 128, rel=0.1)
    assert (second.programs, second.threads, second.m) == (2048, 128, 64)
    guess = guessed(KnobSpace(knobs.space, knobs.default), plans)
    assert guess is not None
    assert guessed(KnobSpace(knobs.space, knobs.default), {other: plans[other]}) is None
