"""The ablation of islands and crossover: it runs, repeats itself, and its committed page says what its figures say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments import islands_ablation

RESULTS = Path(islands_ablation.__file__).parent / "results"


def test_a_small_run_writes_figures_and_a_page_and_repeats_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pages = []
    for name in ("first", "second"):
        islands_ablation.main(["--seeds", "2", "--evaluations", "12", "--out", str(tmp_path / name)])
        pages.append((tmp_path / name / "islands_ablation.md").read_text())
    assert pages[0] == pages[1]
    assert pages[0].strip() in capsys.readouterr().out
    results = json.loads((tmp_path / "first" / "islands_ablation.json").read_text())
    assert results["command"] == "python -m experiments.islands_ablation --seeds 2 --evaluations 12"
    assert all(len(values) == 2 and min(values) >= 1.0 for values in results["best_fitness"].values())


def test_the_interval_follows_the_paired_differences() -> None:
    better = islands_ablation.compare([2.2, 3.3, 1.1], [2.0, 3.0, 1.0])
    assert better["ratio"] == pytest.approx(1.1)
    assert better["low"] == pytest.approx(better["high"])
    assert better["won"] == 1.0
    mixed = islands_ablation.compare([1.0, 2.0, 1.0, 2.0], [2.0, 1.0, 2.0, 1.0])
    assert mixed["low"] < 1.0 < mixed["high"]


def test_the_committed_page_is_made_of_the_committed_figures() -> None:
    results = json.loads((RESULTS / "islands_ablation.json").read_text())
    assert (RESULTS / "islands_ablation.md").read_text() == islands_ablation.markdown(results)
    assert {"5", "20"} <= set(results["comparisons"])
    assert results["tier"] == "simulated"
    five = results["best_fitness"]["islands"][:5], results["best_fitness"]["single"][:5]
    assert results["comparisons"]["5"]["single"] == islands_ablation.compare(*five)
