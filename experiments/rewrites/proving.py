"""Runs originals and their rewritten children side by side, in disposable processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROUNDINGS = 64.0
"""By how many roundings results of a child may differ where its sums have another order; see `prove_child.compared`."""
ROOT = Path(__file__).resolve().parents[2]


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


def interpreted(jobs: Sequence[Job], workers: int = 2) -> list[dict[str, Any]]:
    """What the children compute, against what the originals do; see `prove_child`."""
    return list(answers(jobs, "interpret", workers))


def compiled(jobs: Sequence[Job], workers: int = 2) -> list[dict[str, Any]]:
    """What the real compiler makes of the children for cuda:90, without a GPU."""
    return list(answers(jobs, "compile", workers))


def answers(jobs: Sequence[Job], how: str, workers: int) -> Iterator[dict[str, Any]]:
    """The answers in order, as they come."""
    parts = [jobs[start::workers] for start in range(workers)]
    with ThreadPoolExecutor(workers) as pool:
        streams = list(pool.map(lambda part: _stream(part, how), parts))
    for place in range(len(jobs)):
        yield streams[place % workers][place // workers]


def _stream(jobs: Sequence[Job], how: str) -> list[dict[str, Any]]:
    if not jobs:
        return []
    lines = "".join(json.dumps(vars(job) | {"config": dict(job.config)}) + "\n" for job in jobs)
    command = [sys.executable, "-m", "experiments.rewrites.prove_child", how]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, input=lines, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    if len(found) != len(jobs):
        raise RuntimeError(f"the proving child ended after {len(found)} of {len(jobs)} jobs: {done.stderr[-2000:]}")
    return found
