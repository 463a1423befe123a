"""`triton-evolve tune`: one small kernel from its text to a tuned module and a store, and what a person can get wrong."""

from __future__ import annotations

import dataclasses
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from evo.commands.console import make_console
from evo.commands.tune import with_knobs
from evo.commands.tune_store import TuningStore, transferred_hints
from evo.errors import InputError
from evo.evaluation.settings import EvaluationSettings
from evo.evaluation.tuning_studies import rebuilt
from evo.knobs import narrowed, read_knobs
from evo.main import main
from evo.records import Configuration, Evaluation, Stage, Status, Trial, Variant
from population_store.base import RunHeader, TrialEntry
from population_store.opening import open_store
from population_store.schema import VERSION_TABLE
from tests.evo_tests import ladder_task as modules

ROOT = Path(__file__).resolve().parents[2]
TASK = str(Path(modules.__file__))
PLAIN = (
    modules.GOOD.replace('CONFIG = {"BLOCK": 256, "num_warps": 4}', "")
    .replace('SPACE = {"BLOCK": [64, 256], "num_warps": [1, 4]}', "")
    .replace('CONFIG["BLOCK"], num_warps=CONFIG["num_warps"]', "256, num_warps=4")
)
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    """Runs `tune` in this process; returns exit status, standard output and standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["tune", *arguments])
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


@pytest.mark.slow
def test_a_kernel_without_knobs_is_tuned_and_its_trials_are_kept(call: Call, tmp_path: Path) -> None:
    kernel, out, store = write(tmp_path / "kernel.py", PLAIN), tmp_path / "tuned.py", str(tmp_path / "trials.sqlite")
    status, said, err = call(kernel, "--task", TASK, "--device", "cpu", "--trials", "3", "--out", str(out), "--store", store)
    assert status == 0, said + err
    for part in ("found BLOCK of kernel", "found num_warps", "not measured", "4096x1000", "512x4096", "best of 3 timed"):
        assert part in said
    knobs = read_knobs(out.read_text())
    assert {"BLOCK", "num_warps"} <= set(knobs.space)
    with open_store(store) as opened:
        (row,) = opened.ranking("row_sums")
        tuner = rebuilt(read_knobs(row.variant.source), row.search.trials, [case.case for case in row.search.cases])
    assert knobs.default in {tuner.best_of(case)[0] for case in tuner.cases if tuner.best_of(case)}  # type: ignore[index]
    hints = transferred_hints(store, "row_sums", read_knobs(modules.GOOD))
    assert hints[0] in {case.configuration for case in row.search.cases}
    with pytest.raises(InputError, match="no trial of task softmax"):
        transferred_hints(store, "softmax", knobs)


@pytest.mark.slow
def test_a_killed_tuning_goes_on_and_loses_the_trial_in_hand_at_most(call: Call, tmp_path: Path) -> None:
    kernel, store = write(tmp_path / "kernel.py", modules.GOOD), str(tmp_path / "trials.sqlite")
    command = [
        sys.executable,
        "-m",
        "evo.main",
        "tune",
        kernel,
        "--task",
        TASK,
        "--device",
        "cpu",
        "--trials",
        "4",
        "--store",
        store,
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as killed:
        deadline = time.monotonic() + 120
        while not recorded(store) and killed.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        killed.send_signal(signal.SIGKILL)
    before = recorded(store)
    assert killed.returncode == -signal.SIGKILL, "it was not killed in the middle"
    assert 1 <= len(before) < 4
    status, said, err = call(*command[4:])
    assert status == 0, said + err
    assert f"goes on from {len(before)} configurations that were tried before" in said
    assert "best of 4 timed" in said
    after = recorded(store)
    assert after[: len(before)] == before
    assert len({entry.trials[0].configuration for entry in after}) == len(after) == 4, "nothing was tried twice"
    with open_store(store) as opened:
        (row,) = opened.ranking("row_sums")
    assert {trial.configuration for trial in row.search.trials} == {entry.trials[0].configuration for entry in after}


def recorded(store: str) -> list[TrialEntry]:
    """The trials that a store has of tunings, in order; none while there is no store."""
    if not Path(store).exists():
        return []
    with open_store(store) as opened:
        return [entry for _, entry in opened.journal() if isinstance(entry, TrialEntry)]


def test_a_finished_tuning_is_gone_on_with_and_other_kernels_are_refused(tmp_path: Path) -> None:
    url, settings = str(tmp_path / "trials.sqlite"), EvaluationSettings()
    variant = Variant("row_sums", modules.GOOD)
    trial = Trial("4096x1000", Configuration({"BLOCK": 64, "num_warps": 1}), Status.PASSED, 5.0)
    with TuningStore(url, modules.TASK, variant, settings) as store:
        store.hear("device", [trial])
    with TuningStore(url, modules.TASK, variant, settings) as store:
        assert store.known("device") == (trial,)
        assert store.known("another device") == ()
        verdict = Evaluation(
            variant.variant_id, Status.WRONG_VALUES, Stage.GATE, "device", trials=(trial,), message="m", signature="s"
        )
        store.finish(verdict)
    with TuningStore(url, modules.TASK, variant, settings) as store:
        assert set(store.known("device")) == {trial}
        store.hear("device", [dataclasses.replace(trial, latency_us=4.0)])
    assert [(entry.number, entry.position) for entry in recorded(url)] == [(0, 0), (1, 0)]
    assert transferred_hints(url, "row_sums", read_knobs(modules.GOOD)) == (trial.configuration,)
    with pytest.raises(InputError, match="another kernel"):
        TuningStore(url, modules.TASK, Variant("row_sums", modules.WRONG), settings)
    task = dataclasses.replace(modules.TASK, name="others")
    with pytest.raises(InputError, match="another task"):
        TuningStore(url, task, Variant("others", modules.GOOD), settings)
    search = str(tmp_path / "search.sqlite")
    open_store(search, header=RunHeader("quickstart", 0, "{}", "{}", "{}", "2026-01-01T00:00:00")).close()
    with pytest.raises(InputError, match="store of a search, 'quickstart'"):
        TuningStore(search, modules.TASK, variant, settings)


def test_a_kernel_without_tiles_has_its_launch_options_tuned(tmp_path: Path) -> None:
    fixed = (
        PLAIN.replace("columns, BLOCK: tl.constexpr", "columns")
        .replace("columns, BLOCK=256, num_warps=4", "columns")
        .replace("BLOCK", "256")
    )
    kernel = tmp_path / "kernel.py"
    kernel.write_text(fixed)
    _, knobs = with_knobs(kernel, modules.TASK, make_console())
    assert set(knobs.space) == {"num_warps", "num_stages"}
    assert knobs.default == {"num_warps": 4, "num_stages": 3}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('CONFIG = {"B": 3}\nSPACE = {"B": [1, 2]}\n', "CONFIG['B'] = 3 is not among SPACE['B']"),
        ('CONFIG = {"B": 1}\nSPACE = {"B": []}\n', "must list 1 to 64 choices"),
        ('CONFIG = {"B": 1}\nSPACE = {"B": [1]}\n', "one configuration alone"),
        ('CONFIG = {"B": 1}\nSPACE = {"C": [1, 2]}\n', "SPACE has 'C', which CONFIG lacks"),
        ('CONFIG = {"B": 1}\nSPACE = {"B": [1, 2]}\nHINTS = [{"B": 3}]\n', "HINTS[0] sets 'B' to 3, which SPACE does not allow"),
        ("CONFIG = {\n  'B':\n  print(1)}\n", "CONFIG must be a literal dict"),
        ('CONFIG = {"B": 1}\nSPACE = {}\n', "no @triton.jit function"),
        ("x = 1\n", "no @triton.jit function"),
        ("x = (\n", "does not parse"),
    ],
)
def test_knobs_that_cannot_be_tuned_are_told_in_one_line(call: Call, tmp_path: Path, text: str, said: str) -> None:
    status, _, err = call(write(tmp_path / "kernel.py", text), "--task", TASK, "--device", "cpu")
    assert status == 2
    assert err.count("\n") == 1
    assert said in err


def test_a_task_that_leaves_nothing_to_choose_is_told_and_no_value_at_all_is_refused(tmp_path: Path) -> None:
    kernel = tmp_path / "kernel.py"
    kernel.write_text(modules.GOOD)
    (declared,) = {tuple(sorted(read_knobs(modules.GOOD).default.items()))}
    narrow = dataclasses.replace(modules.TASK, knobs={name: (value,) for name, value in declared})
    with pytest.raises(InputError, match="or more values in the knobs of task row_sums"):
        with_knobs(kernel, narrow, make_console())
    with pytest.raises(ValueError, match=r"knobs\['BLOCK'\] allows no value"):
        dataclasses.replace(modules.TASK, knobs={"BLOCK": ()})


def test_a_narrowed_space_holds_for_numbered_knobs_and_hints_too() -> None:
    text = 'CONFIG = {"B": 1, "num_warps": 4, "num_warps_2": 8}\nSPACE = {"B": [1, 2], "num_warps": [4, 8], "num_warps_2": [2, 4, 8]}\n'
    knobs = narrowed(read_knobs(text + 'HINTS = [{"num_warps_2": 4}, {"num_warps": 8}]\n'), {"num_warps": (4,)})
    assert knobs.space == {"B": (1, 2), "num_warps": (4,), "num_warps_2": (4, 8)}
    assert [hint["num_warps_2"] for hint in knobs.hints] == [4]


def test_other_mistakes_are_told_in_one_line(call: Call, tmp_path: Path) -> None:
    kernel = write(tmp_path / "kernel.py", modules.GOOD)
    newer = str(tmp_path / "newer.sqlite")
    open_store(newer, header=RunHeader("n", 0, "{}", "{}", "{}", "2026-01-01T00:00:00")).close()
    with sqlite3.connect(newer) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    mistakes = [
        (["--task", "nosuch"], "nosuch"),
        (["--task", TASK, "--device", "tpu"], "auto, gpu or cpu"),
        (["--task", TASK, "--transfer", str(tmp_path / "none.sqlite")], "no such population store"),
        (["--task", TASK, "--transfer", kernel], "not a population store"),
        (["--task", TASK, "--transfer", newer], "9999"),
        (["--task", TASK, "--store", newer], "9999"),
        (["--task", TASK, "--store", kernel], "not a population store"),
        (["--task", TASK, "--out", kernel], "exists already"),
    ]
    for arguments, said in mistakes:
        status, _, err = call(kernel, *arguments, *([] if "--device" in arguments else ["--device", "cpu"]))
        assert (status, err.count("\n")) == (2, 1), err
        assert said in err
