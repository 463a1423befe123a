"""Variances: which sums of squares become sums of squared deviations, and which loops one, and what must stay as it is."""

from pathlib import Path

import pytest

from tests.operators_tests.offering import child, edited, refusals

KERNELS = Path(__file__).parent / "kernels"
TILE = (KERNELS / "row_moments.py").read_text()
LOOP = (KERNELS / "one_pass_norm.py").read_text()
TWICE = (KERNELS / "two_pass_norm.py").read_text()


def test_squares_that_a_loop_adds_up_get_a_loop_of_their_own_behind_the_mean():
    made = child("centre_variance", LOOP)
    assert "squares += tl.sum(tl.where(mask, (x - mean) * (x - mean), 0.0), axis=0)  # of the row" in made
    assert made.index("mean = total * inverse") < made.index("squares +=")
    assert "variance = tl.maximum(squares * inverse, 0.0)" in made


def test_loops_of_a_one_pass_variance_become_one_again_that_is_exact():
    made = LOOP
    for name in ("centre_variance", "defer_reductions", "defer_reductions", "welford"):
        made = child(name, made)
    assert "lane_means += tl.where(i * BLOCK + tl.arange(0, BLOCK) < n" in made
    assert "/ (i + 1)" in made


@pytest.mark.parametrize(
    ("source", "old", "new", "reason"),
    [
        (LOOP, "inverse = 1.0 / n", "inverse = 1.0 / (n - 1)", "does not divide by the number of elements"),
        (LOOP, "mask = columns < n", "mask = columns < n - 1", "does not divide by the number of elements"),
        (LOOP, "other=0.0).to(tl.float32)\n        total", "other=1.0).to(tl.float32)\n        total", "not zero, stands beyond"),
        (LOOP, "total = 0.0", "total = 1.0", "does not begin as zero"),
        (LOOP, "tl.sum(x * x, axis=0)", "tl.sum(x * w, axis=0)", "is not the square of"),
        (LOOP, "        squares += ", "        tl.store(y_ptr, 0.0)\n        squares += ", "does more than add up"),
        (LOOP, "        squares += ", "        x += 1.0\n        squares += ", "changes before its variance"),
        (LOOP, "        squares += ", "        row += 1\n        squares += ", "hands more than sums from round to round"),
        (LOOP, "    mean = total", "    tl.store(y_ptr, squares)\n    mean = total", "does more between its loop and the mean"),
        (LOOP, "range(rounds)", "range(1, rounds)", "does not divide by the number of elements"),
        (TILE, "squares = tl.sum(x * x, axis=0) / n", "squares = tl.sum(x * x, axis=0) / (n + 1)", "of as many squares"),
        (TILE, "mask = columns < n", "mask = columns < n - 1", "does not divide by the number of elements"),
        (TILE, "    variance =", "    x = x * 2.0\n    variance =", "the row of row_moments changes"),
        (TILE, "mean = tl.sum(x, axis=0) / n", "mean = tl.max(x, axis=0) / n", "is no sum"),
    ],
)  # fmt: skip
def test_other_differences_are_left_alone(source, old, new, reason):
    assert reason in refusals("centre_variance", edited(source, old, new))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("other=0.0", "other=1.0", "not zero, stands beyond"),
        ("tl.where(cols < n, x", "tl.where((cols < n) & (cols != 3), x", "do not go over a row from 0"),
        ("tl.where(cols < n, x", "tl.where(cols < n - 1, x", "do not go over a row from 0"),
        ("range(0, n, BLOCK)", "range(BLOCK, n, BLOCK)", "do not go over a row from 0"),
    ],
)
def test_loops_whose_lanes_do_not_count_the_row_stay_two(old, new, reason):
    assert reason in refusals("welford", edited(TWICE, old, new))
