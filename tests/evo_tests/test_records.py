"""Records that contradict themselves cannot be made: a failure is worth nothing, and what passed says how it was trusted and timed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from evo.records import CaseResult, Configuration, Evaluation, LatencyKind, Stage, Status, Trial, TrustLevel

RESULT = CaseResult("case", Configuration({}), 0.5, 10.0, 11.0, 1.1, 1.0, 1.2, 8, 64)
TRUSTED: dict[str, Any] = {"trust": TrustLevel.REPLAYED, "latency_kind": LatencyKind.MEASURED, "cases": (RESULT,)}


def verdict(status: Status, **fields: Any) -> Evaluation:
    return Evaluation("v", status, Stage.TIME, "device", **fields)


def test_what_passed_has_a_fitness_a_trust_level_and_cases() -> None:
    assert verdict(Status.PASSED, fitness=1.0, **TRUSTED).fitness == 1.0
    for fitness in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="fitness"):
            verdict(Status.PASSED, fitness=fitness, **TRUSTED)
    for missing in TRUSTED:
        with pytest.raises(ValueError, match="trust level, latency kind and cases"):
            verdict(Status.PASSED, fitness=1.0, **{key: value for key, value in TRUSTED.items() if key != missing})


def test_what_failed_has_none_of_them() -> None:
    assert verdict(Status.WRONG_VALUES).fitness == 0
    with pytest.raises(ValueError, match="fitness"):
        verdict(Status.WRONG_VALUES, fitness=1.0)
    with pytest.raises(ValueError, match="trust level, latency kind and cases"):
        verdict(Status.WRONG_VALUES, **TRUSTED)


def test_a_speedup_lies_in_its_interval_and_latencies_are_positive() -> None:
    for low, point, high in ((1.0, 1.3, 1.2), (1.2, 1.1, 1.3), (1.0, math.nan, 1.2)):
        with pytest.raises(ValueError, match="interval"):
            CaseResult("case", Configuration({}), 0.5, 10.0, 11.0, point, low, high, 8, 64)
    with pytest.raises(ValueError, match="positive"):
        CaseResult("case", Configuration({}), 0.5, 0.0, 11.0, 1.1, 1.0, 1.2, 8, 64)


def test_a_configuration_that_failed_has_no_latency() -> None:
    assert Trial("case", Configuration({}), Status.PASSED, 3.0).latency_us == 3.0
    for status, latency_us in ((Status.WRONG_VALUES, 3.0), (Status.PASSED, None)):
        with pytest.raises(ValueError, match="latency if and only if PASSED"):
            Trial("case", Configuration({}), status, latency_us)


def test_a_duplicate_names_its_twin_and_its_plans() -> None:
    assert verdict(Status.DUPLICATE, duplicate_of="w", plan_hash="h").duplicate_of == "w"
    for fields in ({"plan_hash": "h"}, {"duplicate_of": "w"}):
        with pytest.raises(ValueError, match="DUPLICATE"):
            verdict(Status.DUPLICATE, **fields)
