"""The experiments on noise: they run without a GPU, count what they say they count, and show it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evo.records import CaseResult, Configuration, Evaluation, LatencyKind, Stage, Status, TrustLevel
from evo.tasks.loading import load_task
from experiments import latency_agreement, noise_selection
from experiments.agreement.page import agreement_page, with_overheads

SCALE = Path(latency_agreement.__file__).parent / "agreement" / "scale.py"


def verdict(speedup: float, low: float) -> Evaluation:
    case = CaseResult("2^17", Configuration(), 0.1, 1.0, speedup, speedup, low, 2 * speedup, 8, 0, (0.01, 0.02, 0.0, 0.01))
    return Evaluation(
        "v", Status.PASSED, Stage.TIME, "cpu", plan_hash="p", trust=TrustLevel.REPLAYED, latency_kind=LatencyKind.MEASURED,
        fitness=low, cases=(case,),
    )  # fmt: skip


def test_the_bound_on_a_rate_is_the_exact_one() -> None:
    assert noise_selection.upper_bound(0, 300) == pytest.approx(1 - 0.05 ** (1 / 300))
    assert noise_selection.upper_bound(1, 20) == pytest.approx(0.2161, abs=1e-4)
    assert noise_selection.upper_bound(0, 0) is None


def test_counts_keep_points_noise_and_failures() -> None:
    counts = noise_selection.Counts()
    counts.add(verdict(1.01, 0.99))
    counts.add(verdict(1.03, 1.002))
    counts.add(Evaluation("w", Status.RUNTIME_ERROR, Stage.GATE, "cpu", message="out of memory"))
    found = noise_selection.figures(counts)
    assert (found["evaluated"], found["failed"]) == (3, ["runtime_error: out of memory"])
    assert found["points"]["max"] == 1.03
    assert found["cases"]["2^17"]["noise_floor"] > 0


@pytest.mark.slow
def test_an_interpreted_run_promotes_no_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noise_selection.main(
        [
            "--task",
            str(SCALE),
            "--cases",
            "1",
            "--copies",
            "2",
            "--seconds",
            "1",
            "--device",
            "cpu:cuda:90",
            "--out",
            str(tmp_path),
        ]
    )
    found = json.loads((tmp_path / "noise_selection.json").read_text())["ours"]
    assert (found["rounds"], found["evaluated"], found["failed"]) == (1, 2, [])
    assert (found["false_improvements"], found["promoted"]) == (0, 0)
    assert "promoted over the incumbent in a search: 0 (0.00%" in capsys.readouterr().out


@pytest.mark.parametrize("name", latency_agreement.FILES)
def test_kernels_of_the_agreement_are_tasks(name: str) -> None:
    task = load_task(str(SCALE.parent / f"{name}.py"))
    assert f"def {task.entry}_kernel(" in task.starting_kernels[0]  # the profiler's events are found by this name


def test_graphs_have_enough_calls_and_sets() -> None:
    assert latency_agreement.plan_for(3.0, 1 << 20, 50 << 20) == latency_agreement.Plan(100, 1)
    assert latency_agreement.plan_for(5000.0, 1 << 32, 50 << 20) == latency_agreement.Plan(1, 1)
    assert latency_agreement.plan_for(30.0, 60 << 20, 50 << 20) == latency_agreement.Plan(2, 5)


def test_a_page_shows_how_far_readings_are_apart() -> None:
    found = {"empty_us": 2.0, "start_us": 1.0, "gap_us": 0.5}
    assert with_overheads(3.0, 10, found) == pytest.approx(3.0 + (1.0 + 9 * 0.5) / 10)
    reading = {"replay_us": 4.0, "replay_equal_us": 4.02, "noise": 0.004, "calls": 10, "graph_us": 4.04, "cupti_graph_us": 3.45}
    page = agreement_page(
        {"seed": 0, "overheads": found, "rows": {"scale 2^17": reading, "scale 2^20": {}}}, "measured with care"
    )
    assert "| scale 2^17 | 4.00 | 4.02 | ±0.40% | 4.04 | +1.00% | 3.45 | +0.00% | – | – | – | – |" in page
    assert "An empty graph takes 2.00 µs" in page
