"""The tuning benchmark: grids on disk, strategies on landscapes with a known best, Kernel Tuner's format, a modelled grid end to end."""

from __future__ import annotations

import itertools
import json
import math
import statistics
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from evo.errors import TritonEvolveError
from evo.evaluation.tuning_facts import facts_of
from evo.evaluation.tuning_space import Codes, Floats, KnobSpace
from evo.knobs import read_knobs
from evo.records import Configuration, Failure
from evo.tracing.plan import LaunchPlan
from evo.tracing.tracer import Tracer
from evo.tracing.workbench import Job, Workbench
from experiments import tuning_truth as script
from experiments.tuning.autotune import Retuned, Tuned
from experiments.tuning.catalogue import SUBJECTS, Subject, configurations, cut_down, knobs_of, subjects
from experiments.tuning.grid import PASSED, Entry, Grid, load_grids, pooled_noise
from experiments.tuning.guessing import guesses, worth
from experiments.tuning.importance import importances, write_chart
from experiments.tuning.kernel_tuner_side import exported, kernel_tuner_courses
from experiments.tuning.measuring import Plan, measure, opened
from experiments.tuning.standing import overall, standing, standings
from experiments.tuning.strategies import STRATEGIES, Course, budget, course, gpu_seconds, observed, replay
from experiments.tuning_synthetic import modelled_grids, trace_of

ROOT = Path(__file__).resolve().parents[2]
SPACE = {"BLOCK_M": (16, 32, 64, 128, 256), "BLOCK_N": (16, 32, 64, 128, 256), "num_warps": (1, 2, 4, 8), "num_stages": (1, 2, 3)}
BEST = Configuration({"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3})


def synthetic(name: str = "synthetic") -> Grid:
    """A smooth valley around `BEST`; large tiles with many stages do not fit."""
    entries = []
    for values in itertools.product(*SPACE.values()):
        item = Configuration(dict(zip(SPACE, values, strict=True)))
        m, n, warps, stages = values
        if m * n * stages > 128 * 128 * 2:
            entries.append(Entry(item, "out_of_resources", "too large"))
            continue
        off = abs(math.log2(m / 128)) + 0.7 * abs(math.log2(n / 64)) + 0.5 * abs(math.log2(warps / 4)) + 0.2 * (3 - stages)
        latency = 100 * 1.08**off
        entries.append(Entry(item, PASSED, "", latency, (latency,), gate_s=0.5, time_s=0.25))
    default = Configuration({"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1})
    return Grid(name, "gemm", "case", "gemm", "model", True, SPACE, default, tuple(entries), 300.0, 10, 0.005, 0.002)


def test_every_kernel_has_its_case_and_a_large_space() -> None:
    for subject in SUBJECTS:
        task, case = subject.load()
        knobs = knobs_of(subject)
        assert case in task.training_cases
        assert knobs.size >= 240, subject.name
        assert len(set(configurations(knobs))) == knobs.size
        assert knobs.default in configurations(knobs)
    assert len({subject.load()[0].kind for subject in SUBJECTS}) >= 7
    with pytest.raises(ValueError, match="no kernel gem; there are softmax, "):
        subjects(["gem"])


def test_a_cut_down_space_keeps_what_is_declared() -> None:
    knobs = read_knobs(SUBJECTS[0].source)
    small = cut_down(knobs, 2)
    assert small.size == 2 ** len(knobs.space)
    assert all(knobs.default[name] in choices for name, choices in small.space.items())


def test_a_grid_survives_the_disk(tmp_path: Path) -> None:
    grid = synthetic()
    grid.save(tmp_path / "grids")
    assert load_grids(tmp_path) == [grid]
    assert grid.best == BEST
    assert grid.best_us == 100
    assert grid.near_best(0.02) == 2  # the best, and one stage less
    assert grid.reasons["out_of_resources"] + grid.reasons["passed"] == len(grid.entries) == 300
    with pytest.raises(FileNotFoundError, match="measure --out"):
        load_grids(tmp_path / "none")


def test_noise_is_pooled_over_configurations() -> None:
    assert pooled_noise([(100.0,), ()]) == 0
    assert pooled_noise([(99.0, 101.0), (990.0, 1010.0)]) == pytest.approx(math.sqrt(2) / 100)


def test_a_course_is_judged_by_the_truth_not_by_what_was_seen() -> None:
    grid = synthetic()
    seen = dict(grid.latencies)
    slow, large = grid.default, next(entry.configuration for entry in grid.entries if entry.latency_us is None)
    seen[slow] = 50.0  # noise makes the slow one look best
    judged = course(grid, "any", 0, [large, BEST, slow], seen)
    assert judged.quality == (0.0, 1.0, pytest.approx(100 / grid.latencies[slow]))
    assert judged.reached == math.inf  # it was there, and left
    assert course(grid, "any", 0, [large, slow, BEST], grid.latencies).reached == 3
    assert judged.at(2) == judged.at(1) + 1 == 1
    assert Course("g", "s", 0, (), ()).reached == math.inf


def test_costs_count_every_timing_and_one_gate() -> None:
    grid = synthetic()
    large = next(entry.configuration for entry in grid.entries if entry.latency_us is None)
    assert gpu_seconds(grid, [large, grid.default, BEST], BEST) == 0.25 * 2 + 0.5


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies_are_deterministic_and_keep_to_the_budget(strategy: str) -> None:
    grid = synthetic()
    first, second = (replay(grid, strategy, 3, 0.01, 0.15) for _ in range(2))
    assert first == second
    assert len(first.tried) == len(set(first.tried)) == budget(grid, 0.15)
    assert set(first.tried) <= set(grid.latencies)
    assert first.tried != replay(grid, strategy, 4, 0.01, 0.15).tried


def test_ours_finds_a_known_best_where_random_search_does_not() -> None:
    grid = synthetic()
    courses = [replay(grid, name, seed, 0.003, 0.15) for name in ("ours", "random") for seed in range(5)]
    rows = {row["strategy"]: row for row in standings([grid], courses, 0.15)}
    assert rows["ours"]["median_near"]
    assert rows["ours"]["share_until_near"][1] <= 0.15
    assert rows["ours"]["quality_end"][1] > rows["random"]["quality_end"][1]
    assert rows["random"]["near_at_end"] < 5
    best = overall(list(rows.values()))[0]
    assert (best["strategy"], best["near"], best["grids"]) == ("ours", 1, 1)


def test_on_synthetic_kernels_a_guess_is_worth_more_than_the_trials_that_a_quick_tune_has_without_it() -> None:
    grids = [grid for grid in modelled_grids() if grid.name in ("gemm", "attention", "thin_gemm")]
    assert len(grids) == 3
    for grid in grids:
        guided, blind = (
            statistics.median(trace_of(grid, seed, 8, ahead=2, guided=item)[-1] for seed in range(3)) for item in (True, False)
        )
        assert guided < min(blind, 1.2), grid.name


@pytest.mark.slow
def test_every_kernel_compiles_with_the_triton_at_hand() -> None:
    jobs = []
    for subject in SUBJECTS:
        task, case = subject.load()
        jobs.append(Job(subject.source, task, case, knobs_of(subject).default))
    bench = Workbench("cuda:90", workers=2)
    try:
        found = bench.prepare(jobs)
    finally:
        bench.close()
    assert {job.task.name: item.message for job, item in zip(jobs, found, strict=True) if isinstance(item, Failure)} == {}


@pytest.mark.slow
def test_a_row_that_is_read_twice_and_what_waits_in_shared_memory_are_read_from_the_trace() -> None:
    (subject,) = subjects(["softmax"])
    task, case = subject.load()
    knobs = knobs_of(subject)
    chosen = [Configuration({**knobs.default, "STAGES": stages, "BLOCK": 4096}) for stages in (1, 4)]
    tracer = Tracer("cuda:90")
    try:
        plans = tracer.trace_each(subject.source, task, [(case, item) for item in chosen])
    finally:
        tracer.close()
    plain, staged = (facts_of(plan) for plan in plans if isinstance(plan, LaunchPlan))
    assert plain is not None
    assert staged is not None
    assert plain.kept == 8 * 4096 * 2, "eight tiles of bfloat16 cover a row of 32000"
    assert (plain.stages, staged.stages) == (1, 4)
    assert plain.widest == 4096 * 4, "a tile of float32"
    assert plain.live == pytest.approx(2 * 4096 + 4096 * 2 / 4), "two accumulators, and a tile of two numbers a register"


class Knowing:
    """A guess that ranks a grid as it is, and takes three stages for too many."""

    def __init__(self, grid: Grid) -> None:
        self._grid, self._space = grid, KnobSpace(grid.space, grid.default)

    def terms(self, rows: Sequence[Codes]) -> Floats:
        """One term."""
        return np.asarray([[math.log(self._grid.latencies[self._space.configuration(codes)] or 1.0)] for codes in rows])

    def fits(self, rows: Sequence[Codes]) -> Floats:
        """By stages alone."""
        return np.asarray([0.05 if self._space.configuration(codes)["num_stages"] == 3 else 1.0 for codes in rows])


def test_the_worth_of_a_guess_is_what_it_ranks_and_foresees() -> None:
    grid = synthetic()
    found = worth(grid, Knowing(grid), 1)
    assert found["spearman"] == pytest.approx(1.0, abs=1e-3)
    assert found["first_quality"] == 1.0
    for name, lacks in (("foreseen", True), ("mistaken", False)):
        entries = [entry for entry in grid.entries if (entry.latency_us is None) is lacks]
        assert found[name] == sum(entry.configuration["num_stages"] == 3 for entry in entries) / len(entries)


def test_a_strategy_that_never_arrives_is_shown_as_such() -> None:
    grid = synthetic()
    late = [course(grid, "late", seed, [grid.default], grid.latencies) for seed in range(3)]
    row = standing(grid, late, 0.15)
    assert row["trials_until_near"] == [None, None, None]
    assert not row["median_near"]
    assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_kernel_tuner_gets_every_configuration_in_its_own_format() -> None:
    grid = synthetic()
    cache = exported(grid, observed(grid, 0, 0.0))
    assert len(cache["cache"]) == 300
    assert cache["cache"]["128,64,4,3"]["time"] == pytest.approx(0.1)  # milliseconds
    assert cache["cache"]["256,256,4,3"]["time"] == "CompilationFailedConfig"
    assert list(cache["tune_params"]) == cache["tune_params_keys"] == list(SPACE)
    assert json.loads(json.dumps(cache)) == cache


def test_an_interpreter_without_kernel_tuner_is_one_clear_line() -> None:
    with pytest.raises(TritonEvolveError, match=r"Kernel Tuner failed in .*No module named 'kernel_tuner'"):
        kernel_tuner_courses(sys.executable, [synthetic()], [0], {"synthetic": 0.0}, 0.15)


def test_importance_names_the_knobs_that_matter(tmp_path: Path) -> None:
    shares = importances(synthetic())
    assert next(iter(shares)) == "BLOCK_M"
    assert min(shares, key=shares.__getitem__) == "num_stages"
    write_chart(synthetic(), tmp_path)
    texts = [item.text for item in ElementTree.parse(tmp_path / "synthetic.svg").iter() if item.text and item.text.strip()]
    assert {"BLOCK_M", "BLOCK_N", "num_warps", "num_stages"} <= set(texts)


def test_the_autotuned_kernel_drops_the_knobs_that_the_entry_passes() -> None:
    launched = []
    tuned = {(7,): lambda *arguments, **named: launched.append((arguments, named))}
    Retuned(tuned, ["BLOCK", "num_warps"])[(7,)]("x", DIM=64, BLOCK=128, num_warps=4)
    assert launched == [(("x",), {"DIM": 64})]


def test_tritons_autotuner_runs_on_the_kernels_as_they_are() -> None:
    """In Triton's interpreter, with made-up timings."""
    code = """
import itertools, torch
from pathlib import Path
from experiments.tuning.autotune import chosen_by, retuned
from experiments.tuning.catalogue import configurations, cut_down, knobs_of, subjects
(subject,) = subjects(["transpose"])
knobs = cut_down(knobs_of(subject), 2)
chosen = configurations(knobs)[:3]
times = itertools.cycle([3.0, 1.0, 2.0])
def bench(call, quantiles):
    call()
    return [next(times)] * 3
path = Path("experiments/tuning/kernels/transpose.py").resolve()
call, tuned = retuned(path, "transpose", list(knobs.space), chosen, do_bench=bench)
x = torch.arange(35.0).reshape(5, 7)
assert torch.equal(call(x), x.t())
assert chosen_by(tuned, list(knobs.space)) == {name: chosen[1][name] for name in knobs.space}
"""
    environment = {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": "/tmp"}
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]


def test_what_triton_failed_at_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("transpose", "matvec"):
        synthetic(name).save(tmp_path / "grids")
    tuned = [Tuned("transpose", 300, 300, 0.0, None, "did not end within 9 s"), Tuned("matvec", 300, 300, 1.0, BEST)]
    rows = [script.autotune_row(synthetic(item.name), item) for item in tuned]
    (tmp_path / "autotune.json").write_text(json.dumps({"session": {}, "rows": rows}))
    monkeypatch.setattr(script, "run_autotune", lambda subject, *_: Tuned(subject.name, 300, 300, 2.0, BEST))
    script.main(["autotune", str(tmp_path), "--commit", "abc"])
    found = json.loads((tmp_path / "autotune.json").read_text())["rows"]
    assert [(row["name"], row["wall_s"], row["error"]) for row in found] == [("matvec", 1.0, ""), ("transpose", 2.0, "")]


def test_triton_is_extrapolated_and_only_whole_spaces_have_a_quality() -> None:
    grid = synthetic()
    part = Tuned("synthetic", 300, 12, 6.0, BEST)
    assert (part.whole, part.extrapolated_s) == (False, 150.0)
    assert script.autotune_row(grid, part)["quality"] is None
    assert script.autotune_row(grid, Tuned("synthetic", 300, 300, 150.0, BEST))["quality"] == 1.0
    assert script.autotune_row(grid, Tuned("synthetic", 300, 300, 0.0, None, "ended with 1: x"))["error"] == "ended with 1: x"


def test_replayed_grids_make_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    synthetic("first").save(tmp_path / "grids")
    synthetic("second").save(tmp_path / "grids")
    synthetic("third").save(tmp_path / "grids")
    rows = [script.autotune_row(synthetic("first"), Tuned("first", 300, 300, 150.0, BEST))]
    (tmp_path / "autotune.json").write_text(json.dumps({"session": {}, "rows": rows}))
    script.main(
        ["strategies", str(tmp_path), "--seeds", "1", "--commit", "abc", "--workers", "1", "--only", "first", "--only", "second"]
    )
    found = json.loads((tmp_path / "tuning_truth.json").read_text())
    assert {row["grid"] for row in found["standings"]} == {"first", "second"}
    assert found["noise"] == {"first": 0.005, "second": 0.005}
    assert found["autotune"][0]["ours_s"] > 0
    page = (tmp_path / "tuning_truth.md").read_text()
    assert "commit abc" in page
    assert "**Ours is within 2 % of the best of the grid on 2 of 2 kernels**" in page
    assert "* random search: " in page
    assert "* GPU time of a quick tune" in page
    assert "![Importance of the knobs of second](importance/second.svg)" in page
    assert "`triton.autotune` on the same spaces takes" in page
    assert "| first | 300 of 300 | 150.0 | 150 | 1.000 |" in page
    assert "| strategy | kernels within 2 %" in capsys.readouterr().out
    assert (tmp_path / "importance" / "second.svg").exists()


@pytest.mark.slow
def test_a_modelled_grid_is_measured_gated_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["measure", "--device", "cpu:cuda:90", "--workers", "2", "--commit", "abc", "--only", "transpose", "--values", "1"]
    script.main([*command, "--out", str(tmp_path)])
    (grid,) = load_grids(tmp_path)
    assert grid.reasons == {"passed": 1}
    assert not grid.measured
    assert grid.device == "cuda:90 (modelled)"
    assert grid.session["commit"] == "abc"
    assert set(guesses([grid])) == {"transpose"}
    (entry,) = grid.entries
    assert entry.programs == 8192 * 8192 / (32 * 32)
    assert entry.registers > 0
    assert "transpose: 1 of 1 configurations pass" in capsys.readouterr().out
    written = (tmp_path / "grids" / "transpose.json").stat().st_mtime_ns
    script.main([*command, "--out", str(tmp_path)])  # there is nothing left to do
    assert (tmp_path / "grids" / "transpose.json").stat().st_mtime_ns == written


class Small(Subject):
    """Matrix transposition with four configurations; the tiles of two are larger than Triton allows."""

    @property
    def source(self) -> str:
        """The kernel module with another space."""
        head, _, rest = super().source.partition("SPACE = {")
        space = "SPACE = {'BLOCK_M': [32, 16384], 'num_warps': [1, 4]}\n"
        return head.replace('"BLOCK_N": 32', '"BLOCK_N": 128') + space + rest.partition("}\n")[2]


@pytest.mark.slow
def test_with_the_declared_configuration_gated_all_are_timed_and_what_does_not_fit_is_kept_with_its_reason(
    tmp_path: Path,
) -> None:
    told: list[str] = []
    with opened("cpu:cuda:90", 2) as place:
        measure(place, [Small("transpose", "8192x8192")], Plan(gate="declared"), tmp_path, {}, math.inf, told.append)
    (grid,) = load_grids(tmp_path)
    assert len(grid.entries) == 4
    assert {entry.configuration["BLOCK_M"] for entry in grid.valid} == {32}
    assert grid.reasons["passed"] == 2
    assert all(entry.message for entry in grid.entries if entry.latency_us is None)
    assert told[0].startswith("transpose: 2 of 4 configurations pass")
