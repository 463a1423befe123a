"""`triton-evolve bench cluster`: its figures add up, and it notices a verdict that is lost or recorded twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from evo.commands.bench_cluster import check, measure, page, rows
from population_store.base import RunHeader
from population_store.contract import samples
from population_store.opening import open_store

RUN = {
    "evaluators": 10,
    "seconds_per_evaluation": 0.5,
    "batch": 10,
    "window_s": 10.0,
    "evaluations": 100,
    "per_second": 10.0,
    "cpu_ms": {"engine": 1.0, "proposer": 0.2, "evaluators": 0.5, "driver": 0.05},
    "engine_limit_per_second": 1000.0,
    "recorded": 120,
    "twice": 0,
    "accepted_and_not_recorded": 0,
    "store_bytes_per_variant": 1500.0,
}


def test_a_verdict_that_was_accepted_and_is_not_there_is_counted(tmp_path: Path) -> None:
    header = RunHeader("x", 1, "{}", "{}", "{}", "2026-01-01T00:00:00+00:00")
    with open_store(str(tmp_path / "x.sqlite"), header=header) as store:
        for number in range(3):
            store.record(samples.history(number), samples.spent_after(number))
        judged = check(store, 0)["evaluations"]
        assert check(store, judged) == {"evaluations": judged, "twice": 0, "lost": 0}
        assert check(store, judged + 2)["lost"] == 2


def test_the_page_has_every_line_for_every_run() -> None:
    session = {
        "gpu": "none",
        "driver": "none",
        "torch": "2",
        "triton": "3",
        "python": "3",
        "cores": 2,
        "commit": "c",
        "command": "x",
    }
    results = {"session": session, "record": {"device": "d", "origin": "o"}, "rate": 600.0, "seed": 0, "runs": [RUN, RUN]}
    text = page(results)
    assert all(f"| {name} | {one} | {two} |" in text for name, one, two in rows([RUN, RUN]))


@pytest.mark.slow
def test_simulated_evaluators_do_a_whole_run(local_ray: None) -> None:
    run = measure(evaluators=20, rate=100.0, seconds=3.0, seed=0)
    assert (run["twice"], run["accepted_and_not_recorded"]) == (0, 0)
    assert run["evaluations"] > 20
    assert run["recorded"] > run["evaluations"]
    assert min(run["cpu_ms"].values()) > 0
