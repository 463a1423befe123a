"""The simulated device: its verdicts are spread as those it was recorded from, and say that they are simulated."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from pathlib import Path

import pytest

from evo.evaluation.base import Baseline, Effort, WorkItem
from evo.evaluation.simulated_device import H200, DeviceRecord, SimulatedDevice
from evo.records import LatencyKind, Status, Variant

RESULTS = Path(__file__).resolve().parents[2] / "experiments" / "results" / "bench_evaluator.json"
BASELINE = Baseline(Variant("toy", "start"), {})
ITEMS = [WorkItem(number, Variant("toy", f"# {number}"), BASELINE) for number in range(2_000)]


def test_the_shipped_record_is_that_of_the_committed_results() -> None:
    recorded = DeviceRecord.from_results(json.loads(RESULTS.read_text()), "there")
    assert recorded.name == H200.name
    assert recorded.threads == H200.threads
    assert recorded.shares == pytest.approx(H200.shares)
    assert (recorded.median_s, recorded.p90_s) == pytest.approx((H200.median_s, H200.p90_s), rel=1e-3)
    assert (recorded.gpu_s, recorded.noise) == pytest.approx((H200.gpu_s, H200.noise), rel=1e-2)


def test_seconds_and_verdicts_are_spread_as_recorded() -> None:
    device = SimulatedDevice(H200, seed=1, pace=10.0)
    seconds = sorted(device.seconds(item) for item in ITEMS)
    assert statistics.median(seconds) == pytest.approx(H200.median_s / 10, rel=0.05)
    assert seconds[int(0.9 * len(seconds))] == pytest.approx(H200.p90_s / 10, rel=0.07)
    counts = Counter(device.verdict(item, None).status for item in ITEMS)
    for status, share in H200.shares.items():
        assert counts[status] / len(ITEMS) == pytest.approx(share, abs=0.03)


def test_a_verdict_depends_on_seed_and_source_alone_and_says_that_it_is_simulated() -> None:
    slept: list[float] = []
    device, again = SimulatedDevice(seed=1, sleep=slept.append), SimulatedDevice(seed=1, sleep=slept.append)
    verdicts = [device.evaluate(item, lambda plan, variant: None) for item in ITEMS[:50]]
    assert [again.evaluate(item, lambda plan, variant: None) for item in reversed(ITEMS[:50])] == verdicts[::-1]
    assert slept[:50] == [verdict.wall_s for verdict in verdicts]
    passed = [verdict for verdict in verdicts if verdict.status is Status.PASSED]
    assert {verdict.latency_kind for verdict in passed} == {LatencyKind.SIMULATED}
    assert {verdict.device for verdict in verdicts} == {"simulated"}
    start = WorkItem(0, Variant("toy", "start"), None)
    assert device.verdict(start, None).speedup == 1.0
    assert device.verdict(ITEMS[0], "0" * 24).status is Status.DUPLICATE


def test_a_plan_is_claimed_in_the_search_and_not_in_a_verification() -> None:
    claimed: list[str] = []
    device = SimulatedDevice(sleep=lambda seconds: None)

    def claim(plan: str, variant: str) -> str | None:
        claimed.append(variant)
        return None

    device.evaluate(ITEMS[0], claim)
    device.evaluate(WorkItem(1, ITEMS[1].variant, BASELINE, Effort.VERIFY), claim)
    assert claimed == [ITEMS[0].variant.variant_id]


def test_records_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="shares"):
        DeviceRecord("x", "", 1, 1.0, 2.0, 0.1, 0.0, {Status.PASSED: 0.5})
    with pytest.raises(ValueError, match="no verdict of its own"):
        DeviceRecord("x", "", 1, 1.0, 2.0, 0.1, 0.0, {Status.DUPLICATE: 1.0})
    with pytest.raises(ValueError, match="pace"):
        SimulatedDevice(pace=0.0)
