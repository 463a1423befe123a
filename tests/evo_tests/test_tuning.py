"""Tuning on a synthetic kernel whose latency is known: order, determinism, constraints and gain over chance."""

from __future__ import annotations

import random
import statistics
import warnings

import pytest

from evo.evaluation.tuning import Tuner
from evo.records import Configuration, KnobValue

SPACE: dict[str, tuple[KnobValue, ...]] = {
    "BLOCK_M": (16, 32, 64, 128, 256),
    "BLOCK_N": (256, 32, 64, 128),  # not in order, as people write them
    "num_warps": (1, 2, 4, 8, 16),
    "num_stages": (1, 2, 3, 4),
    "EVEN": (True, False),
}
DEFAULT = Configuration({"BLOCK_M": 16, "BLOCK_N": 32, "num_warps": 1, "num_stages": 1, "EVEN": False, "fixed": 7})


def latency_us(configuration: Configuration) -> float | None:
    """A bowl around (128, 128, 8, 3, True), and tiles that need too much memory in the corner."""
    m, n, warps, stages = (float(configuration[key]) for key in ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages"))
    if m * n * stages > 120_000:
        return None
    far = sum((value.bit_length() - best.bit_length()) ** 2 for value, best in ((int(m), 128), (int(n), 128), (int(warps), 8)))
    return 20.0 + 6.0 * far + 2.0 * abs(stages - 3) + (0.0 if configuration["EVEN"] else 3.0)


def tune(tuner: Tuner) -> list[Configuration]:
    asked = []
    while (configuration := tuner.ask()) is not None:
        asked.append(configuration)
        latency = latency_us(configuration)
        tuner.tell(configuration, latency, latency is not None)
    return asked


def random_best(seed: int, trials: int) -> float:
    generator = random.Random(seed)
    found = [latency_us(DEFAULT)]
    for _ in range(trials - 1):
        found.append(latency_us(Configuration({**DEFAULT, **{k: generator.choice(v) for k, v in SPACE.items()}})))
    return min(value for value in found if value is not None)


def best_latency(tuner: Tuner) -> float:
    assert tuner.best is not None
    return tuner.best[1]


def test_it_beats_random_search_in_the_median_over_seeds() -> None:
    tuned = []
    for seed in range(9):
        tuner = Tuner(SPACE, DEFAULT, [], trials=24, seed=seed)
        tune(tuner)
        tuned.append(best_latency(tuner))
    assert statistics.median(tuned) < statistics.median(random_best(seed, 24) for seed in range(200))


def test_the_declared_configuration_comes_first_then_the_hints_of_relatives() -> None:
    hints = [
        Configuration({**DEFAULT, "BLOCK_M": 64, "fixed": 99}),  # a fixed knob stays what this variant declares
        Configuration({"BLOCK_N": 128, "num_warps": 3}),  # 3 is not allowed here, 4 is nearest in ratio; the rest is missing
        Configuration({**DEFAULT, "BLOCK_M": 64}),  # the same again
    ]
    asked = tune(Tuner(SPACE, DEFAULT, hints, trials=8, seed=0))
    assert asked[:3] == [
        DEFAULT,
        Configuration({**DEFAULT, "BLOCK_M": 64}),
        Configuration({**DEFAULT, "BLOCK_N": 128, "num_warps": 4}),
    ]
    assert len(asked) == len(set(asked))
    assert sum(latency_us(item) is not None for item in asked) == 8
    assert all(set(item) == set(DEFAULT) and item["fixed"] == 7 for item in asked)


def test_equal_seeds_and_answers_give_equal_questions() -> None:
    first, second, other = (tune(Tuner(SPACE, DEFAULT, [], trials=16, seed=seed)) for seed in (3, 3, 4))
    assert first == second
    assert first != other


def test_a_small_space_is_exhausted_without_repeats() -> None:
    space: dict[str, tuple[KnobValue, ...]] = {"num_warps": (4, 1, 2), "mode": ("a", "b")}
    tuner = Tuner(space, Configuration({"num_warps": 4, "mode": "a"}), [], trials=50, seed=0)
    asked = []
    while (configuration := tuner.ask()) is not None:
        asked.append(configuration)
        tuner.tell(configuration, 1.0, True)
    assert len(asked) == len(set(asked)) == 6


@pytest.mark.parametrize("trials", [0, 1, 9])
def test_without_knobs_there_is_one_trial(trials: int) -> None:
    tuner = Tuner({}, Configuration({"fixed": 1}), [Configuration({"fixed": 2})], trials=trials, seed=0)
    assert tuner.best is None
    assert tuner.ask() == Configuration({"fixed": 1})
    assert tuner.ask() is None


def test_infeasible_configurations_are_avoided_and_never_the_best() -> None:
    space: dict[str, tuple[KnobValue, ...]] = {
        "BLOCK": tuple(2**k for k in range(4, 14)),
        "num_warps": (1, 2, 4, 8, 16),
        "GROUP": (1, 2, 4, 8),
    }
    default = Configuration({"BLOCK": 16, "num_warps": 1, "GROUP": 1})
    shares = []
    for seed in range(6):
        tuner = Tuner(space, default, [], trials=20, seed=seed)
        infeasible = 0
        while (configuration := tuner.ask()) is not None:
            feasible = int(configuration["BLOCK"]) <= 256  # half of the space
            infeasible += not feasible
            tuner.tell(configuration, 10.0 if feasible else None, feasible)  # nothing but feasibility to learn from
        assert tuner.best is not None
        assert int(tuner.best[0]["BLOCK"]) <= 256
        shares.append(infeasible / 20)
    assert statistics.median(shares) < 0.4


def test_nothing_feasible_leaves_no_best() -> None:
    tuner = Tuner(SPACE, DEFAULT, [], trials=7, seed=0)
    asked = 0
    while (configuration := tuner.ask()) is not None:
        asked += 1
        tuner.tell(configuration, None, False)
    assert asked == 14, "as many infeasible ones as trials come on top: they cost no time of the device"
    assert tuner.best is None


def test_several_open_questions_may_be_answered_in_any_order() -> None:
    tuner = Tuner(SPACE, DEFAULT, [], trials=6, seed=0)
    asked = [tuner.ask() for _ in range(6)]
    assert tuner.ask() is None
    for latency, configuration in enumerate(reversed(asked), 1):
        assert configuration is not None
        tuner.tell(configuration, float(latency), True)
    assert tuner.best == (asked[-1], 1.0)


def test_contradictions_are_refused() -> None:
    with pytest.raises(ValueError, match="default"):
        Tuner(SPACE, Configuration({**DEFAULT, "num_warps": 3}), [], trials=4, seed=0)
    with pytest.raises(ValueError, match="negative"):
        Tuner(SPACE, DEFAULT, [], trials=-1, seed=0)
    tuner = Tuner(SPACE, DEFAULT, [], trials=4, seed=0)
    with pytest.raises(ValueError, match="not asked"):
        tuner.tell(DEFAULT, 1.0, True)
    assert tuner.ask() == DEFAULT
    for latency, feasible in ((None, True), (1.0, False), (0.0, True), (float("inf"), True)):
        with pytest.raises(ValueError, match="feasible"):
            tuner.tell(DEFAULT, latency, feasible)


def test_it_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tune(Tuner(SPACE, DEFAULT, [], trials=12, seed=0))
    assert capfd.readouterr() == ("", "")
