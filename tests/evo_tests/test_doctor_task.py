"""`triton-evolve doctor --task` and the refusal of `run`: what a person is told about a task that a cheat would pass."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from evo.commands.search import Overrides
from evo.config import RunConfig, read_config
from evo.main import main
from tests.evo_tests.running_processes import ROOT

Call = Callable[..., tuple[int, str, str]]

TASK = '''
"""A task."""

import torch

from evo.tasks.base import Case, Task, TensorSpec, Tolerance


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def case(rows: int, columns: int) -> Case:
    return Case(f"{rows}x{columns}", (TensorSpec((rows, columns), "float32"),), bytes=8 * rows * columns, flops=rows * columns)


TASK = Task(
    name="doubled",
    description="y = 2 x",
    entry="doubled",
    reference=doubled,
    training_cases=(case(64, 128),),
    held_out_cases=(case(33, 65), case(1 << 17, 1 << 17)),
    small_cases=(case(3, 7), case(5, 129)),
    starting_kernels=("def doubled(x):\\n    return x * 2\\n",),
    {more}
)
'''
RUN = "name: x\ntasks: [mine.py]\ntarget: cuda:90\ncluster: {device: gpu}\n"


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


def write(folder: Path, more: str = "", name: str = "mine.py") -> None:
    (folder / name).write_text(TASK.replace("{more}", more))
    (folder / "run.yaml").write_text(RUN)


def test_a_task_that_stops_every_cheat_is_well_and_what_was_not_looked_at_is_named(call: Call, tmp_path: Path) -> None:
    write(tmp_path)
    status, out, _ = call("doctor", "--task", "mine.py")
    assert status == 0, out
    assert "No known cheat passes mine.py." in out
    assert "zeros for output 0" not in out, "what is stopped is counted"
    assert re.search(r"(\d+) of \1 cheats are stopped", out)
    assert "remark" not in out
    assert "not looked at: case 131072x131072" in out
    assert "3x7" in out


def test_a_weak_task_is_told_with_the_cure_and_the_status_of_a_failure(call: Call, tmp_path: Path) -> None:
    write(tmp_path, "tolerance=Tolerance(floor_epsilons=1e9),")
    status, out, _ = call("doctor", "--task", "mine.py")
    assert status == 1
    assert "the search and the verification" in out
    (problem,) = [line for line in out.replace("\n", " ").split("problem: ")[1:] if "tolerance.floor_epsilons is" in line]
    assert "would pass" in problem
    assert "zeros for output 0" in problem
    assert re.search(r"that also stops \d+ more: ", problem), "cheats with one cure are told of together"
    assert "tolerance.floor_epsilons is 1000000000.0 (usual: 2.0)" in problem
    assert "cure: a smaller tolerance.floor_epsilons" in problem


def test_what_makes_a_task_say_less_than_it_could_is_remarked(call: Call, tmp_path: Path) -> None:
    write(tmp_path)
    text = (
        (tmp_path / "mine.py").read_text().replace("held_out_cases=(case(33, 65), case(1 << 17, 1 << 17)),", "held_out_cases=(),")
    )
    (tmp_path / "mine.py").write_text(text.replace("return x * 2\n\n", "return (x.float() * 2).to(x.dtype)\n\n"))
    status, out, _ = call("doctor", "--task", "mine.py")
    assert status == 0, out
    assert "remark: held_out_cases is empty" in out
    assert re.search(r"remark: the reference narrows float64 at \S*mine.py:\d+: return \(x.float\(\) \* 2\)", out), out


def test_a_run_of_a_weak_task_is_refused_before_anything_starts(call: Call, tmp_path: Path) -> None:
    write(tmp_path, "tolerance=Tolerance(floor_epsilons=1e9),")
    status, _, err = call("run", "run.yaml")
    *findings, last = err.splitlines()
    assert status == 2
    assert any(line.startswith("weak: task doubled: zeros for output 0") for line in findings)
    assert all(line.startswith("weak: task doubled: ") and "cure: " in line for line in findings)
    assert f"triton-evolve doctor --task {tmp_path / 'mine.py'} tells more; --accept-weak-task runs it all the same" in last
    assert not (tmp_path / "runs").exists()


def test_a_weak_task_that_is_accepted_is_run_and_its_weakness_still_told(call: Call, tmp_path: Path, local_ray: None) -> None:
    import ray

    if ray.cluster_resources().get("GPU"):
        pytest.skip("this machine has one, so the run would start")
    write(tmp_path, "tolerance=Tolerance(floor_epsilons=1e9),")
    status, _, err = call("run", "run.yaml", "--accept-weak-task")
    assert status == 2
    assert err.splitlines()[0].startswith("weak: task doubled: ")
    assert "cluster.device" in err.splitlines()[-1], "it got as far as to look for a GPU"


def test_a_run_records_that_weak_tasks_were_accepted(tmp_path: Path) -> None:
    write(tmp_path)
    config = read_config(tmp_path / "run.yaml")
    assert not config.accept_weak_tasks
    accepted = Overrides(accept_weak_tasks=True).apply(config)
    assert RunConfig.from_text(accepted.to_text(), "a store").accept_weak_tasks
    (tmp_path / "run.yaml").write_text(RUN + "accept_weak_tasks: true\n")
    assert Overrides().apply(read_config(tmp_path / "run.yaml")).accept_weak_tasks


def one_line(answer: tuple[int, str, str], *said: str) -> None:
    status, _, err = answer
    assert status == 2, err
    (line,) = err.splitlines()
    for part in said:
        assert part in line


def test_an_unknown_task_is_answered_with_the_key_the_file_and_the_known_ones(call: Call, tmp_path: Path) -> None:
    one_line(call("doctor", "--task", "sofmax"), "--task", "'sofmax'", "softmax", ".py")
    one_line(call("doctor", "--task", "absent.py"), "absent.py", "no such file")
    (tmp_path / "run.yaml").write_text("name: x\ntasks: [softmax, sofmax]\n")
    one_line(call("run", "run.yaml"), "run.yaml: tasks.1", "sofmax", "softmax")


def test_a_reference_that_fails_on_a_later_case_is_named_by_both_commands(call: Call, tmp_path: Path) -> None:
    write(tmp_path)
    text = (tmp_path / "mine.py").read_text().replace("return x * 2\n\n", "return x.view(-1, 7) * 2\n\n")
    (tmp_path / "mine.py").write_text(text)
    for command in (("doctor", "--task", "mine.py"), ("run", "run.yaml")):
        one_line(call(*command), "mine.py: reference on case 5x129", "RuntimeError")


@pytest.mark.parametrize("command", [("doctor", "--task", "mine.py"), ("run", "run.yaml")])
def test_small_cases_that_do_not_fit_in_memory_are_told(call: Call, tmp_path: Path, command: tuple[str, ...]) -> None:
    write(tmp_path)
    text = (tmp_path / "mine.py").read_text().replace("(case(3, 7), case(5, 129))", "(case(1 << 20, 1 << 24),)")
    (tmp_path / "mine.py").write_text(text)
    one_line(call(*command), "mine.py", "1048576x16777216")


def test_the_doctor_tries_the_sandbox_and_says_what_contained_each_attempt(call: Call) -> None:
    _, out, _ = call("doctor")
    (row,) = [line for line in out.splitlines() if "sandbox that connects to the caller by TCP" in line]
    assert "contained" in row


def test_the_doctor_without_a_task_does_not_load_torch() -> None:
    import subprocess
    import sys

    code = "import sys\nfrom evo.main import main\ntry:\n    main(['doctor'])\nfinally:\n    print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.stdout.splitlines()[-1] == "False"
