"""Runs originals and their rewritten children side by side, in disposable processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.rewrites.flag_gems import FLAG_GEMS
from experiments.rewrites.other_projects import project_paths

ROUNDINGS = 64.0
"""By how many roundings results of a child may differ where its sums have another order; see `prove_child.compared`."""
ROOT = Path(__file__).resolve().parents[2]
LIGER = "TRITON_EVOLVE_LIGER"
"""Environment variable that names an unpacked wheel of Liger, whose modules import each other."""
CHILDREN = {"offer": "offer_child", "interpret": "prove_child", "compile": "prove_child"}


@dataclass(frozen=True)
class Job:
    """An original and its children.

    Attributes:
        original: Source of the module.
        children: Sources of what rewrites made of it.
        driver: Code that calls it and leaves its results in `result_gold`.
        config: Knobs to set wherever a module has them.
        deadline_s: Processor seconds that the original may take.
    """

    original: str
    children: tuple[str, ...]
    driver: str
    config: Mapping[str, Any] = field(default_factory=dict)
    deadline_s: float = 20.0

    def encoded(self) -> dict[str, Any]:
        """In JSON's types."""
        return vars(self) | {"config": dict(self.config)}


def bound(source: str, *, exact: bool) -> float:
    """By how many roundings children may differ: by none where a rewrite keeps bits, unless the kernel's own additions are atomic, whose
    order nothing tells."""
    return 0.0 if exact and "atomic_add" not in source else ROUNDINGS


class Prover:
    """A child process that answers one job after another.

    Args:
        how: ``offer``: what rewrites make of a source; ``interpret``: what the children compute, against what the originals do;
            ``compile``: what the real compiler makes of the children for cuda:90, without a GPU.
    """

    def __init__(self, how: str) -> None:
        command = [sys.executable, "-m", f"experiments.rewrites.{CHILDREN[how]}", how]
        named = (os.environ.get(name, "") for name in ("PYTHONPATH", LIGER, FLAG_GEMS))
        path = os.pathsep.join([*filter(None, named), *project_paths()])
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
        )

    def answer(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one job."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the proving child ended with status {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()


def interpreted(jobs: Sequence[Job], workers: int = 2) -> list[dict[str, Any]]:
    """What the children compute, against what the originals do."""
    return _answers(jobs, "interpret", workers)


def compiled(jobs: Sequence[Job], workers: int = 2) -> list[dict[str, Any]]:
    """What the real compiler makes of the children for cuda:90, without a GPU."""
    return _answers(jobs, "compile", workers)


def _answers(jobs: Sequence[Job], how: str, workers: int) -> list[dict[str, Any]]:
    def stream(part: Sequence[Job]) -> list[dict[str, Any]]:
        if not part:
            return []
        prover = Prover(how)
        try:
            return [prover.answer(job.encoded()) for job in part]
        finally:
            prover.close()

    with ThreadPoolExecutor(workers) as pool:
        streams = list(pool.map(stream, [jobs[start::workers] for start in range(workers)]))
    return [streams[place % workers][place // workers] for place in range(len(jobs))]
