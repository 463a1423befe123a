"""Mistakes on the command line that need no torch to be seen are answered without it, all of a kind at once, with what was meant."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.evo_tests.running_processes import ROOT

SLOW = ("torch", "triton", "ray", "libcst", "optuna")
RUN = "name: x\ntasks: [{tasks}]\ntarget: cuda:90\n"
CODE = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from evo.main import main
try:
    main(sys.argv[1:])
finally:
    print(sorted(set({SLOW}) & set(sys.modules)))
"""


NARROW = """
import dataclasses


def narrow(x):
    return torch.softmax(x.float(), -1)


TASK = dataclasses.replace(TASK, reference=narrow)
"""


def mistaken(folder: Path, *arguments: str) -> tuple[list[str], str]:
    """What is said of a mistake, and what was imported for that."""
    answer = subprocess.run([sys.executable, "-c", CODE, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert answer.returncode == 2, answer.stderr
    lines = answer.stderr.splitlines()
    assert all(line.startswith("triton-evolve: ") for line in lines), answer.stderr
    return lines, answer.stdout.strip()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "absent.yaml"), "absent.yaml"),
        (("run", "key.yaml"), "search.ilands"),
        (("run", "provider.yaml"), "models.0: provider"),
        (("run", "target.yaml"), "'cuda:33'"),
        (("doctor", "--task", "sofmax"), "did you mean softmax?"),
        (("bench", "evaluator", "--task", "absent.py"), "no such file"),
        (("trace", "absent.py", "--task", "softmax"), "absent.py; given 'no such file'; give the path of a kernel module"),
        (("trace", "kernel.py", "--task", "softmax", "--target", "cuda:33"), "cuda:33"),
        (("tune", "kernel.py", "--task", "no.such.module"), "no.such.module"),
        (("tune", ".", "--task", "softmax"), "a folder"),
        (("resume", "absent.sqlite"), "absent.sqlite"),
        (("export", "absent.sqlite", "--out", "front"), "absent.sqlite"),
    ],
)
def test_no_mistake_waits_for_torch(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    (tmp_path / "kernel.py").write_text("x = 1\n")
    softmax = RUN.format(tasks="softmax")
    (tmp_path / "key.yaml").write_text(softmax + "search: {ilands: 3}\n")
    (tmp_path / "provider.yaml").write_text(softmax + "models: [{provider: nobody, name: x}]\n")
    (tmp_path / "target.yaml").write_text(softmax.replace("cuda:90", "cuda:33"))
    (line,), imported = mistaken(tmp_path, *arguments)
    assert said in line
    assert imported == "[]"


def test_all_names_that_lead_nowhere_are_told_of_at_once(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN.format(tasks="sofmax, softmax, absent.py"))
    lines, imported = mistaken(tmp_path, "run", "run.yaml")
    assert len(lines) == 2
    assert "run.yaml: tasks.0; given 'sofmax'" in lines[0]
    assert "did you mean softmax?" in lines[0]
    assert "run.yaml: tasks.2: " in lines[1]
    assert "absent.py; given 'no such file'" in lines[1]
    assert imported == "[]"


def test_all_tasks_that_are_broken_are_told_of_at_once_and_typos_with_what_was_meant(tmp_path: Path) -> None:
    text = (ROOT / "evo" / "tasks" / "softmax.py").read_text()
    start = str(ROOT / "evo" / "tasks" / "starts" / "softmax.py")
    (tmp_path / "typo.py").write_text(text.replace("training_cases=", "traning_cases="))
    (tmp_path / "start.py").write_text(text.replace('"starts/softmax.py"', '"my_kernel.py"'))
    narrow = text.replace('"starts/softmax.py"', repr(start)) + NARROW
    (tmp_path / "narrow.py").write_text(narrow)
    (tmp_path / "run.yaml").write_text(RUN.format(tasks="typo.py, rms_norm, start.py, narrow.py"))
    lines, _ = mistaken(tmp_path, "run", "run.yaml")
    assert [line.split(": ")[2] for line in lines] == ["tasks.0", "tasks.2", "tasks.3"]
    assert lines[0].endswith("did you mean training_cases?")
    assert f"there is no {tmp_path / 'my_kernel.py'}; paths are relative to the task file" in lines[1]
    assert "an output that is not float64 (it narrows at " in lines[2]
    assert f"narrow.py:{len(narrow.splitlines()) - 3}: return torch.softmax(x.float(), -1)" in lines[2]
