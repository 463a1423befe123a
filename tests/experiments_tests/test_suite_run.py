"""`triton-evolve bench SUITE` on a suite of two files: searched with real kernels on the CPU, gone on with in place, refusals counted."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from evo.commands.bench_suite import SuiteOptions, bench_suite_command, preparing_at_once
from evo.errors import InputError, StoreError, TaskError
from evo.suites.comparing import Comparing
from evo.suites.jobs import RunFolder
from evo.suites.launched import HOSTED
from evo.suites.preparing import Ready
from evo.suites.registry import find_suite
from population_store.opening import open_store

sys.path.insert(0, str(Path(__file__).parent))
import tiny_suites

SCALE = "tritonbench_g_scale"


@pytest.mark.slow
def test_a_suite_is_searched_and_a_second_run_goes_on_in_place(tmp_path: Path) -> None:
    root, store, out = tiny_suites.tritonbench(tmp_path / "checkout"), tmp_path / "run", tmp_path / "out"
    perf = tiny_suites.SCALE_PERF.replace("range(12, 26, 3)", "range(6, 13, 3)")  # the interpreter runs these, too
    tiny_suites.write(root / "performance_metrics/perf_G/golden_metrics/scale_perf.py", perf)

    def run(evaluations: int) -> list[dict[str, str]]:
        options = SuiteOptions(root, evaluations=evaluations, store=store, device="cpu", out=out, commit="none")
        assert bench_suite_command("tritonbench-g", options) == 0
        return list(csv.DictReader((out / "tritonbench_g.csv").read_text().splitlines()))

    rows = {row["title"]: row for row in run(2)}
    assert rows["scale"]["state"] == "verified"
    assert rows["scale"]["trust"] == "interpreted"
    assert rows["other"]["state"] == "refused"
    assert "146 #" in rows["other"]["reason"]
    results = json.loads((out / "tritonbench_g.json").read_text())
    assert results["figures"]["execution_accuracy"]["of"] == 2
    assert str(tmp_path) not in json.dumps(results["session"])
    with open_store(str(store / "problems" / SCALE / "store.sqlite")) as opened:
        before = opened.spent.evaluations
    made = (store / "problems" / SCALE / "task.py").stat().st_mtime_ns
    assert run(2)[0]["state"]
    assert run(4)[0]["state"]
    with open_store(str(store / "problems" / SCALE / "store.sqlite")) as opened:
        assert opened.spent.evaluations > before, "a larger budget prolongs the search"
    assert (store / "problems" / SCALE / "task.py").stat().st_mtime_ns == made, "nothing is prepared twice"
    # Under the interpreter the times say nothing, but the sides run and are compared in rounds.
    found = Comparing(("kernel",), deadline_s=200.0, rounds=2).measure(store / "problems" / SCALE, "cpu:cuda:90")
    assert found.get("cases"), found


def test_another_suite_in_the_folder_and_what_is_no_option_are_refused(tmp_path: Path) -> None:
    root = tiny_suites.tritonbench(tmp_path / "checkout")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "suite.json").write_text('{"suite": "rocm"}')
    with pytest.raises(StoreError, match="a run of rocm"):
        bench_suite_command("tritonbench-g", SuiteOptions(root, store=tmp_path / "run"))
    (tmp_path / "run" / "suite.json").write_text("[]")
    with pytest.raises(StoreError, match="not what a run writes"):
        bench_suite_command("tritonbench-g", SuiteOptions(root, store=tmp_path / "run"))
    for place in (tmp_path / "run" / "suite.json", Path("/proc/run")):
        with pytest.raises(StoreError, match="that you may write to"):
            bench_suite_command("tritonbench-g", SuiteOptions(root, store=place))
    with pytest.raises(InputError, match="--out"):
        bench_suite_command("tritonbench-g", SuiteOptions(root, store=tmp_path / "other", out=tmp_path / "run" / "suite.json"))
    with pytest.raises(InputError, match="--only"):
        SuiteOptions(root, only="sleep")
    with pytest.raises(TaskError, match="no such problem"):
        bench_suite_command("tritonbench-g", SuiteOptions(root, problems="unknown", store=tmp_path / "other"))
    with pytest.raises(InputError, match="SUITE"):
        bench_suite_command("tritonbench-z", SuiteOptions(root))


def test_problems_that_keep_a_device_from_others_come_last(tmp_path: Path) -> None:
    suite, root = find_suite("tritonbench-g"), tiny_suites.tritonbench(tmp_path / "checkout")
    folder, problems = RunFolder(tmp_path / "run", suite, root), suite.problems(root)
    assert folder.hosted_last(problems) == problems
    place = folder.of(problems[0])
    place.mkdir(parents=True)
    ready = Ready(problems[0].name, "ready", notes=("a size is left out", HOSTED))
    (place / "ready.json").write_text(json.dumps(ready.to_json()))
    assert folder.hosted_last(problems) == (*problems[1:], problems[0])


def test_preparing_alone_takes_all_cores_and_leaves_half_beside_a_search() -> None:
    assert [preparing_at_once(cores, alone=True) for cores in (1, 2, 16, 128)] == [1, 2, 16, 32]
    assert [preparing_at_once(cores, alone=False) for cores in (1, 2, 16)] == [1, 1, 8]
