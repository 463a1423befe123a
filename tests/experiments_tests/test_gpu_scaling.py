"""Scaling over GPUs: rates come from the middle of a run, the page states what was measured, and a real run can be watched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments import gpu_scaling
from experiments.scaling.page import page, write_plot
from experiments.scaling.watching import Sample, figures, seconds_until

SESSION = {
    "command": "python -m experiments.gpu_scaling", "gpu": "G", "driver": "1", "torch": "2", "triton": "3", "python": "3.12",
    "cores": 32, "commit": "abc",
}  # fmt: skip


def steady(per_s: float, evaluations: int) -> list[Sample]:
    """Ten seconds in which nothing is done yet, then a steady rate; half of the device's time is used, and a tenth of a core."""
    samples = [Sample(float(at), 0, 0.0, {}, 0.0, (0.0,)) for at in range(10)]
    done, at = 0, 10
    while done < evaluations:
        done = min(evaluations, int(per_s * (at - 9)))
        samples.append(Sample(float(at), done, 0.5 * (at - 9), {"softmax": 1.0 + done / evaluations}, 0.1 * (at - 9), (0.7,)))
        at += 1
    return samples


def test_rates_leave_out_how_a_run_begins_and_ends() -> None:
    samples = steady(2.0, 100)
    idle = [Sample(samples[-1].at + second, 100, 99.0, {"softmax": 2.0}, 99.0, (0.0,)) for second in range(1, 60)]
    found = figures([*samples, *idle], 100, 1)
    assert found["per_minute"] == pytest.approx(120, rel=0.05)
    assert found["measured_share"] == pytest.approx(0.5, rel=0.05)
    assert found["busy"] == pytest.approx(0.7)
    assert found["engine_share"] == pytest.approx(0.1, rel=0.05)
    assert found["wall_s"] == samples[-1].at
    assert seconds_until(samples, {"softmax": 1.5}) == pytest.approx(10 + 24, abs=1)
    assert seconds_until(samples, {"softmax": 2.5}) is None


def test_the_page_and_the_plot_state_speedups_over_one_gpu(tmp_path: Path) -> None:
    runs = [
        {"gpus": count, **figures(steady(rate, 200), 200, count), "recorded": {"evaluations": 200, "twice": 0, "lost": 0}}
        | {"seconds_until_good": 40.0}
        for count, rate in ((1, 2.0), (2, 4.0))
    ]
    killed = {**runs[1], "death": {"at": 30.0, "evaluations": 100, "replaced_s": 12.5}}
    curve = [{"gpus": count, "per_minute": 120.0 * count, "engine_share": 0.003 * count} for count in (1, 2, 4)]
    results = {
        "session": SESSION, "evaluator": "kernels", "tasks": ["softmax"], "evaluations": 200, "cores_per_gpu": 16, "seed": 0,
        "wanted": {"softmax": 1.9}, "runs": runs, "killed": killed,
        "simulated": {"session": SESSION, "record": "a record", "curve": curve},
    }  # fmt: skip
    text = page(results)
    assert "| 1 | 120 | 1.00 | 50% | 70% |" in text
    assert "| 2 | 240 | 2.00 |" in text
    assert "was replaced after 12.5 s" in text
    assert "| 4 | 480 | 4.00 |" in text
    assert "no GPU was used" not in text
    assert "no GPU was used" in page(results | {"evaluator": "simulated"})
    write_plot(tmp_path, results)
    drawn = (tmp_path / "gpu_scaling.svg").read_text()
    assert drawn.count("<circle") == 5
    assert "simulated" in drawn


@pytest.mark.slow
def test_a_real_search_is_watched_and_loses_an_evaluator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--evaluator", "simulated", "--cores", "1", "--tasks", "softmax", "--evaluations", "60", "--commit", "abc"]
    gpu_scaling.main(["measure", "--gpus", "2", "--kill", "--out", str(tmp_path), *options])
    results = json.loads((tmp_path / "gpu_scaling.json").read_text())
    assert results["killed"]["death"]["evaluations"] >= 30
    assert results["killed"]["death"]["replaced_s"] is not None
    for run in (results["runs"][0], results["killed"]):
        assert run["recorded"]["evaluations"] >= 60
        assert (run["recorded"]["twice"], max(0, run["recorded"]["lost"])) == (0, 0)
    assert page(results) in capsys.readouterr().out
