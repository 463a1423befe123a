"""What a person can get wrong on the command line: each time one line on stderr, exit status 2 and no traceback."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from evo.commands.search import Overrides
from evo.config import read_config
from evo.main import main
from population_store.base import RunHeader
from population_store.opening import open_store
from population_store.schema import VERSION_TABLE
from tests.evo_tests.running_processes import ROOT

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    """Runs the command in this process; returns exit status, standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def refused(answer: tuple[int, str, str], *said: str) -> None:
    status, _, err = answer
    assert status == 2, err
    lines = [line for line in err.splitlines() if line.strip()]
    assert len(lines) == 1
    assert lines[0].startswith("triton-evolve: ")
    for part in said:
        assert part in lines[0]


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


MINIMAL = "name: x\ntasks: [{task}]\ntarget: cuda:90\nevaluator: simulated\n"


def test_a_missing_configuration_is_named(call: Call) -> None:
    refused(call("run", "absent.yaml"), "absent.yaml", "no such file")


def test_an_unknown_key_is_named_with_the_nearest(call: Call, tmp_path: Path) -> None:
    path = write(tmp_path / "run.yaml", MINIMAL.format(task="softmax") + "search: {ilands: 3}\n")
    refused(call("run", path), "run.yaml: search.ilands", "islands")


def test_a_missing_task_file_is_named(call: Call, tmp_path: Path) -> None:
    path = write(tmp_path / "run.yaml", MINIMAL.format(task="mine/task.py"))
    refused(call("run", path), str(tmp_path / "mine" / "task.py"), "no such file", "softmax")


def test_an_unknown_task_is_answered_with_the_known_ones(call: Call, tmp_path: Path) -> None:
    refused(call("run", write(tmp_path / "run.yaml", MINIMAL.format(task="sofmax"))), "sofmax", "softmax")


def test_a_task_whose_reference_fails_is_named_with_the_reason(call: Call, tmp_path: Path) -> None:
    task = (ROOT / "evo" / "tasks" / "softmax.py").read_text()
    task += "\nimport dataclasses\n\ndef broken(x):\n    raise ValueError('no such luck')\n\n"
    task += (
        f"TASK = dataclasses.replace(TASK, reference=broken, starting_kernels=({str(ROOT / 'evo/tasks/starts/softmax.py')!r},))\n"
    )
    write(tmp_path / "mine.py", task)
    refused(call("run", write(tmp_path / "run.yaml", MINIMAL.format(task="mine.py"))), "mine.py: reference", "no such luck")


@pytest.mark.parametrize("reference", ["raise SystemExit(0)", "raise KeyError(x)"])
def test_a_task_that_exits_is_refused_as_one_that_fails(call: Call, tmp_path: Path, reference: str) -> None:
    task = (ROOT / "evo" / "tasks" / "softmax.py").read_text()
    start = str(ROOT / "evo/tasks/starts/softmax.py")
    task += f"\nimport dataclasses\n\ndef broken(x):\n    {reference}\n\n"
    task += f"TASK = dataclasses.replace(TASK, reference=broken, starting_kernels=({start!r},))\n"
    write(tmp_path / "mine.py", task)
    config = write(tmp_path / "run.yaml", MINIMAL.format(task="mine.py"))
    refused(call("run", config), "mine.py: reference", reference.split("(")[0].removeprefix("raise "))
    write(tmp_path / "mine.py", "raise SystemExit(3)\n")
    refused(call("run", config), "mine.py", "SystemExit", "import without errors")


def test_a_task_without_a_starting_kernel_needs_a_model(call: Call, tmp_path: Path) -> None:
    # torch.compile makes forward passes alone, so no seed either
    task = (
        "import dataclasses\nfrom evo.tasks import softmax\n\n"
        "TASK = dataclasses.replace(softmax.TASK, starting_kernels=(), backward=True)\n"
    )
    write(tmp_path / "mine.py", task)
    config = write(tmp_path / "run.yaml", MINIMAL.format(task="mine.py"))
    refused(call("run", config), "softmax: no starting kernel", "models", "llm_generate")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("operators: [magic]\n", ["operators.0", "'magic'", "parameterise_tile"]),
        ("operators: [llm_optimize]\n", ["operators.0", "'llm_optimize'", "models"]),
    ],
)
def test_an_operator_that_cannot_be_used_is_named(call: Call, tmp_path: Path, more: str, said: list[str]) -> None:
    refused(call("run", write(tmp_path / "run.yaml", MINIMAL.format(task="softmax") + more)), *said)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("provider: nobody, name: x", ["models.0: provider", "'nobody'", "anthropic"]),
        ("provider: anthropic, name: x, options: {efort: low}", ["models.0: options", "'efort'", "effort"]),
    ],
)
def test_a_model_that_cannot_be_used_is_named_before_a_store_is_made(
    call: Call, tmp_path: Path, model: str, said: list[str]
) -> None:
    path = write(tmp_path / "run.yaml", MINIMAL.format(task="softmax") + f"models: [{{{model}}}]\n")
    refused(call("run", path), *said)
    assert not (tmp_path / "runs").exists()


def test_a_missing_key_is_told_before_a_store_is_made(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    path = write(
        tmp_path / "run.yaml", MINIMAL.format(task="softmax") + "models: [{provider: anthropic, name: claude-sonnet-5-5}]\n"
    )
    refused(call("run", path), "ANTHROPIC_API_KEY")
    assert not (tmp_path / "runs").exists()


def test_a_library_is_added_to_that_of_the_configuration_and_must_be_there(call: Call, tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    path = write(tmp_path / "run.yaml", MINIMAL.format(task="softmax") + "library: [kernels]\n")
    refused(call("run", path, "--library", "absent"), "--library", "'absent'", "no such population store or folder")
    other = tmp_path / "others"
    other.mkdir()
    applied = Overrides(library=(str(other), "sqlite:///x", str(tmp_path / "kernels"))).apply(read_config(Path(path)))
    assert applied.library == (str(tmp_path / "kernels"), str(other), "sqlite:///x")


def test_an_unknown_target_is_answered_with_the_known_ones(call: Call, tmp_path: Path) -> None:
    text = MINIMAL.format(task="softmax").replace("cuda:90", "cuda:33")
    refused(call("run", write(tmp_path / "run.yaml", text)), "'cuda:33'", "cuda:90")


def test_a_store_that_exists_is_not_overwritten(call: Call, tmp_path: Path) -> None:
    path = write(tmp_path / "run.yaml", MINIMAL.format(task="softmax"))
    store = write(tmp_path / "old.sqlite", "precious")
    refused(call("run", path, "--store", store), "old.sqlite", "exists already", "resume")
    assert Path(store).read_text() == "precious"


@pytest.mark.parametrize("place", ["/proc/none/run.sqlite", "sqlite:////proc/none/run.sqlite", "file/run.sqlite"])
def test_a_store_that_cannot_be_made_is_refused_before_anything_starts(call: Call, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    answer = call("run", str(ROOT / "configs/quickstart.yaml"), "--store", place)
    refused(answer, "/run.sqlite", "choose a store in a directory you may write to")
    assert "starting" not in answer[1]


@pytest.mark.parametrize("command", [["resume"], ["status"], ["export", "--out", "front"]])
def test_a_store_that_is_missing_or_none_is_refused(call: Call, tmp_path: Path, command: list[str]) -> None:
    refused(call(command[0], "absent.sqlite", *command[1:]), "absent.sqlite")
    sqlite3.connect(tmp_path / "other.sqlite").execute("create table t (x)").connection.close()
    refused(call(command[0], str(tmp_path / "other.sqlite"), *command[1:]), "other.sqlite")


def test_a_store_of_a_newer_version_is_refused(call: Call, tmp_path: Path) -> None:
    store = tmp_path / "run.sqlite"
    open_store(str(store), header=RunHeader("x", 0, "{}", "{}", "{}", "2026-01-01")).close()
    with sqlite3.connect(store) as connection:
        connection.execute(f"update {VERSION_TABLE} set version_num = 'from_the_future'")
    connection.close()
    for command in ("resume", "status"):
        refused(call(command, str(store)), "run.sqlite", "newer")


def test_a_store_in_use_is_refused_with_its_owner(call: Call, tmp_path: Path) -> None:
    store = tmp_path / "run.sqlite"
    with open_store(str(store), header=RunHeader("x", 0, "{}", "{}", "{}", "2026-01-01")):
        refused(call("resume", str(store)), "run.sqlite", f"in use by process {os.getpid()}")


def test_a_gpu_that_is_asked_for_and_absent_is_said(call: Call, tmp_path: Path, local_ray: None) -> None:
    import ray

    if ray.cluster_resources().get("GPU"):
        pytest.skip("this machine has one")
    path = write(tmp_path / "run.yaml", MINIMAL.format(task="softmax") + "cluster: {device: gpu}\n")
    refused(call("run", path), "cluster.device", "'gpu'", "nvidia-smi")
    assert not list((tmp_path / "runs").glob("*")), "no store was made"


def test_trace_names_a_wrong_case_and_an_unreadable_kernel(call: Call) -> None:
    kernel = str(ROOT / "evo" / "tasks" / "starts" / "softmax.py")
    refused(call("trace", kernel, "--task", "softmax", "--case", "huge"), "'huge'", "4096x4096")
    refused(call("trace", "absent.py", "--task", "softmax"), "absent.py")


def test_an_output_without_the_signs_we_print_gets_their_escapes() -> None:
    kernel, environment = str(ROOT / "evo" / "tasks" / "starts" / "softmax.py"), os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "evo.main", "trace", kernel, "--task", "softmax"]
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert "\\xd7" in answer.stdout


def test_help_and_mistakes_do_not_wait_for_torch_or_ray() -> None:
    code = "import sys, evo.main, evo.config; print(sorted({'torch', 'ray', 'triton', 'libcst'} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
