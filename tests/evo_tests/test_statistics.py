"""Intervals with known answers: what a search selects on must neither flatter nor miss a speedup."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evo.evaluation.statistics import case_interval, geometric_mean_interval


def _noise(seed: int, cases: int, pairs: int, scale: float = 0.03) -> list[list[float]]:
    generator = np.random.default_rng(seed)
    return [(scale * generator.standard_t(4, size=pairs)).tolist() for _ in range(cases)]


def test_the_same_kernel_on_both_sides_is_no_speedup() -> None:
    interval = geometric_mean_interval(_noise(1, cases=4, pairs=64), seed=7)
    assert interval.low <= 1.0 <= interval.high
    assert interval.point == pytest.approx(1.0, abs=0.02)
    assert interval.fitness == interval.low


def test_the_point_is_the_geometric_mean_of_the_medians() -> None:
    interval = geometric_mean_interval([[math.log(2)] * 5, [math.log(8)] * 9], seed=0)
    assert interval.point == pytest.approx(4.0)
    assert (interval.low, interval.high) == pytest.approx((4.0, 4.0))


def test_intervals_cover_the_truth_about_as_often_as_they_claim() -> None:
    covered = 0
    for seed in range(300):
        ratios = [[0.2 + noise for noise in case] for case in _noise(seed, cases=3, pairs=32)]
        interval = geometric_mean_interval(ratios, seed=seed, resamples=400)
        covered += interval.low <= math.exp(0.2) <= interval.high
    assert 0.91 <= covered / 300 <= 0.995


def test_a_few_disturbed_pairs_do_not_move_the_speedup() -> None:
    calm = [math.log(1.5)] * 40
    disturbed = calm[:36] + [math.log(50.0)] * 4
    assert case_interval(disturbed, seed=0).point == pytest.approx(1.5)
    assert (case_interval(disturbed, seed=0).low, case_interval(disturbed, seed=0).high) == pytest.approx((1.5, 1.5))


def test_more_pairs_narrow_the_interval() -> None:
    few, many = (geometric_mean_interval(_noise(3, cases=2, pairs=pairs), seed=0) for pairs in (16, 512))
    assert many.half_width < few.half_width / 2


def test_cases_count_equally_whatever_their_number_of_pairs() -> None:
    assert geometric_mean_interval([[0.0] * 100, [math.log(4)]], seed=0).point == pytest.approx(2.0)


def test_a_single_modelled_ratio_has_no_spread() -> None:
    interval = case_interval([math.log(1.25)], seed=0)
    assert interval.low == interval.point == interval.high == pytest.approx(1.25)


@pytest.mark.parametrize("ratios", [[], [[]], [[0.1], []], [[math.nan]], [[0.0, math.inf]]])
def test_nothing_to_average_is_refused(ratios: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="case"):
        geometric_mean_interval(ratios, seed=0)


def test_too_few_resamples_for_the_tails_are_refused() -> None:
    with pytest.raises(ValueError, match="resamples"):
        case_interval([0.1, 0.2], seed=0, resamples=20)


@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=12), min_size=1, max_size=4), st.integers(-5, 2**64))
def test_every_interval_holds_its_point_and_repeats_for_a_seed(ratios: list[list[float]], seed: int) -> None:
    first, second = (geometric_mean_interval(ratios, seed, resamples=100) for _ in range(2))
    assert first == second
    assert 0 < first.low <= first.point <= first.high
