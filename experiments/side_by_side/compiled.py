"""Lets torch.compile work through many references beforehand, in processes of their own: afterwards its cache has them all.

A reference that loops over thousands of tokens is unrolled into as many operators, so each process has a deadline; what is not done by
then has no compiled side, and the reason is named.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from evo.evaluation.inputs import make_inputs
from evo.tasks.loading import load_task

DEADLINE_S = 120.0


def compile_ahead(
    cases: Mapping[str, Sequence[str]], folder: Path, workers: int, deadline_s: float = DEADLINE_S
) -> dict[str, str]:
    """Compiles the references of tasks on their cases.

    Args:
        cases: Task → names of cases.
        folder: Of the cache; this process and those it starts use it from here on.
        workers: Processes at a time.
        deadline_s: Of each task.

    Returns:
        ``TASK CASE`` → why there is no compiled reference, of those that failed.
    """
    os.environ |= {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TRITON_CACHE_DIR": str(folder / "triton")}
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(workers) as pool:
        done = pool.map(lambda item: _one_task(*item, folder, deadline_s), cases.items())
        return {key: reason for failed in done for key, reason in failed.items()}


def _one_task(task: str, cases: Sequence[str], folder: Path, deadline_s: float) -> dict[str, str]:
    answer = folder / f"{task}.json"
    answer.unlink(missing_ok=True)
    command = [sys.executable, "-m", "experiments.side_by_side.compiled", str(answer), task, *cases]
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    said = ""
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=deadline_s, check=False
        )
        said = " ".join(done.stderr.split())[-200:]
    except subprocess.TimeoutExpired:
        said = f"torch.compile took more than {deadline_s:g} s"
    known = dict[str, str](json.loads(answer.read_text(encoding="utf-8"))) if answer.exists() else {}
    return {f"{task} {case}": reason for case in cases if (reason := known.get(case, said or "its process ended"))}


def compile_one(task_name: str, cases: Sequence[str], answer: Path, device: str = "cuda") -> None:
    """Compiles and calls a task's reference on cases; writes case → reason (empty where it went well) after each."""
    task = load_task(task_name)
    found: dict[str, str] = {}
    for name in cases:
        started = time.monotonic()
        try:
            with torch.no_grad():
                torch.compile(task.reference, dynamic=False)(*make_inputs(task, task.case(name), 0, device).arguments)
            found[name] = ""
        except Exception as error:  # noqa: BLE001 - whatever a compiler raises
            found[name] = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        answer.write_text(json.dumps(found), encoding="utf-8")
        print(f"{task_name}, {name}: {time.monotonic() - started:.1f} s {found[name]}", flush=True)
        torch._dynamo.reset()


if __name__ == "__main__":
    compile_one(sys.argv[2], sys.argv[3:], Path(sys.argv[1]))
