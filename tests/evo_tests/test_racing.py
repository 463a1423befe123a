"""Races over a tier with a realistic noise model: copies of the baseline are no improvements, true gains are, and the hopeless leave."""

from __future__ import annotations

import pytest

from evo.evaluation.racing import MAX_BLOCK, Raced, block_sizes, bounded, race
from evo.evaluation.settings import EvaluationSettings
from evo.evaluation.statistics import NoiseFloor, effective_blocks, fitness_interval, student
from evo.evaluation.turns import Sharing, Turns
from tests.evo_tests import ladder_task as modules
from tests.evo_tests.noisy_tier import NoisyTier, candidate

LEVELS = EvaluationSettings().race
RESAMPLES = 100
"""Of the bootstrap, which is the narrower part of the interval here."""


def noisy(seed: int, **speedups: float) -> NoisyTier:
    return NoisyTier(seed, pair=0.004 / 2**0.5, placement=0.005, drift=0.02, speedups=speedups)


def raced(tier: NoisyTier, source: str, incumbent: float = 0.0, cases: int = 1) -> Raced:
    sides = [(candidate(source, case), candidate("baseline", case)) for case in modules.TASK.training_cases[:cases]]
    result = race(Turns(tier, Sharing(), tier.clock), modules.TASK, sides, LEVELS, incumbent)
    assert isinstance(result, Raced)
    return result


def fitness(result: Raced) -> float:
    return fitness_interval([c.blocks for c in result.cases], [c.floor for c in result.cases], 0, RESAMPLES).low


def test_copies_of_the_baseline_are_not_taken_for_improvements() -> None:
    """Twenty copies in each of forty sessions, on one case (the hardest: nothing averages out)."""
    taken = 0
    for session in range(40):
        tier = noisy(session)
        taken += sum(fitness(raced(tier, f"twin {number}")) > 1 for number in range(20))
    assert taken / 800 < 0.01, f"{taken} of 800 copies"


def test_a_gain_of_two_percent_is_seen() -> None:
    seen = sum(fitness(raced(noisy(seed, better=1.02), "better")) > 1 for seed in range(60))
    assert seen / 60 > 0.75, f"{seen} of 60 on a single case"
    seen = sum(fitness(raced(noisy(seed, better=1.02), "better", cases=2)) > 1 for seed in range(60))
    assert seen / 60 > 0.95, f"{seen} of 60 on two cases"


def test_the_hopeless_leave_early_and_contenders_are_measured_alike() -> None:
    tier = noisy(1, slow=0.9, twin=1.0, better=1.05)
    slow = raced(tier, "slow", incumbent=1.0)
    assert (slow.full, len(slow.cases[0].log_ratios)) == (False, LEVELS[0])
    for source in ("twin", "better"):
        result = raced(tier, source, incumbent=1.0, cases=2)
        assert result.full
        assert all(len(case.log_ratios) == LEVELS[-1] for case in result.cases)


def test_a_true_contender_is_hardly_ever_lost() -> None:
    lost = sum(not raced(noisy(seed, better=1.01), "better", incumbent=1.0).full for seed in range(150))
    assert lost <= 3, f"{lost} of 150"


def test_nobody_leaves_where_there_is_no_incumbent() -> None:
    assert raced(noisy(2, slow=0.5), "slow").full


def test_a_slow_case_rules_nothing_out_where_the_mean_is_good() -> None:
    class Mixed(NoisyTier):
        def _time(self, source: str, case: str, placement: int) -> float:
            share = {modules.TASK.training_cases[0].name: 1.25}.get(case, 0.8) if source == "mixed" else 1.0
            return super()._time(source, case, placement) * share

    tier = Mixed(3, pair=0.003, placement=0.005, drift=0.01, speedups={})
    assert raced(tier, "mixed", incumbent=0.99, cases=2).full


def test_pairs_are_taken_in_blocks_of_other_memory() -> None:
    assert block_sizes(8) == [8]
    assert block_sizes(96) == [32, 32, 32]
    assert max(block_sizes(101)) <= MAX_BLOCK
    assert sum(block_sizes(101)) == 101
    blocks = raced(noisy(4), "twin").cases[0].blocks
    assert [len(block) for block in blocks] == [8, 24, 32, 32, 32]
    assert 4 < effective_blocks(blocks) < 5


def test_an_interval_is_at_least_as_wide_as_equal_kernels_differ() -> None:
    steady = [[0.03] * 32 for _ in range(4)]
    calm = fitness_interval([steady], [NoiseFloor(0.0, 5, 0.0)], 0)
    wild = fitness_interval([steady], [NoiseFloor(0.01, 5, 0.01)], 0)
    assert calm.high / calm.low == pytest.approx(1.0)
    assert wild.low < calm.low * 0.98
    assert wild.point == calm.point
    restless = fitness_interval([[[0.0] * 32, [0.04] * 32, [0.0] * 32, [0.04] * 32, [0.02] * 32]], [None], 0)
    assert restless.low < 1 < restless.high, "its own placements disagree"


def test_students_quantiles_fall_to_the_normal_one() -> None:
    values = [student(freedom) for freedom in range(1, 200)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(2.60, abs=0.02)
    with pytest.raises(ValueError, match="degree"):
        student(0)


@pytest.mark.parametrize(
    ("latencies_us", "last"),
    [((10.0,), 128), ((900.0,), 128), ((1500.0,), 64), ((6000.0,), 32), ((10.0, 3000.0), 64), ((0.0,), 128)],
)
def test_kernels_of_milliseconds_are_timed_less_often(latencies_us: tuple[float, ...], last: int) -> None:
    floors = [NoiseFloor(0.001, 5, 0.001, latency) for latency in latencies_us]
    assert bounded(8, LEVELS[1:], floors) == [32, 128], "the first looks stay as they are"
    assert (bounded(32, LEVELS[2:], floors) or [32]) == [last]
    assert bounded(32, LEVELS[2:], [None]) == [128]
