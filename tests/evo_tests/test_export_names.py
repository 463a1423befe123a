"""Packages of an export hide no module: a task may be named as one of Python's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from exported_store import H200, Judge, lineage, write_store

from evo.reporting.export import export_front
from evo.reporting.exporting.package import folder_name
from evo.tasks.loading import load_task, starting_sources

TASK = """
import torch
from evo.tasks.base import Case, Task, TensorSpec


def softmax(x):
    return torch.softmax(x, dim=-1)


def case(rows, columns):
    spec = TensorSpec((rows, columns), "float32")
    return Case(f"{rows}x{columns}", (spec,), bytes=2 * spec.nbytes, flops=5 * spec.numel)


TASK = Task(
    name="cmath", description="Row-wise softmax.", entry="softmax", reference=softmax,
    training_cases=(case(64, 512),), held_out_cases=(), small_cases=(case(3, 70),), starting_kernels=(%r,),
)
"""


@pytest.mark.parametrize(("task", "folder"), [
    ("random", "random_kernels"), ("torch", "torch_kernels"), ("class", "class_kernels"), ("attention", "attention"),
])  # fmt: skip
def test_a_folder_has_the_tasks_name_unless_a_module_has(task: str, folder: str) -> None:
    assert folder_name(task) == folder


@pytest.mark.slow
def test_the_export_of_a_task_named_as_a_module_passes_its_own_test(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TASK % starting_sources(load_task("softmax"))[0])
    task = load_task(str(tmp_path / "mine.py"))
    (start,) = starting_sources(task)
    judge = Judge()
    try:
        verdict = judge.passed(task, start, [9.0], [{}], verify=True, how=H200)
    finally:
        judge.close()
    entries = lineage(0, task.name, start, verdict, strategy="start", verify=verdict)
    with write_store(tmp_path / "store.sqlite", [task], entries) as store:
        report = export_front(store, tmp_path / "front")
    assert report.tasks[0].folder == tmp_path / "front" / "cmath_kernels"
    ran = run_test_of(report.out)
    assert ran.returncode == 0, ran.stdout
    report.tasks[0].folder.rename(report.out / "cmath")
    assert run_test_of(report.out).returncode != 0, "torch itself finds the package in place of the module"


def run_test_of(folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the test of an export where this project cannot be imported."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_front.py"]
    return subprocess.run(
        command, cwd=folder, env={**environment, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
