"""The judge's own process on a GPU machine: it receives a candidate's outputs and alone knows what they should be."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Sequence
from pathlib import Path

import torch

from evo.evaluation.judge import Judge
from evo.evaluation.oracle import Outputs
from evo.evaluation.tolerance import Verdict
from evo.records import Failure, Stage
from evo.tasks.base import Task
from evo.tasks.draws import Draw
from evo.tasks.loading import load_task

ORACLE_BYTES = 24 << 30
ORACLE_SHARE = 6
"""No judge keeps more answers than this part of the device's memory holds: there are several, and a replay process beside them."""


class JudgeProcess:
    """Served by `evo.evaluation.worker`."""

    def __init__(self) -> None:
        total_bytes = int(torch.cuda.get_device_properties(0).total_memory)
        self._judge = Judge("cuda", min(ORACLE_BYTES, total_bytes // ORACLE_SHARE))
        self._tasks: dict[str, Task] = {}

    def open_probe(self, data: bytes) -> bool:
        """Whether tensors of another process can be opened by CUDA IPC on this machine."""
        try:
            return bool(pickle.loads(data).sum().item() == 3.0)
        except (RuntimeError, OSError, ValueError):
            return False

    def judge(self, task: str, case: str, draw: Draw, structure: str, data: bytes, stage: str) -> Verdict | Failure:
        """Judges outputs (pickled tensors: CUDA IPC handles or copies); `Judge.judge` moves them, and knows what to do where they do
        not fit."""
        described = self._task(task)
        tensors = tuple(pickle.loads(data))
        verdict = self._judge.judge(described, described.case(case), draw, Outputs(structure, tensors), Stage(stage))
        del tensors
        torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]
        return verdict

    def drop(self, outputs: Sequence[bytes]) -> int:
        """Opens outputs that nobody will look at, so that their owner may let go of them; tells how many were still there."""
        opened = 0
        for data in outputs:
            with contextlib.suppress(RuntimeError):  # their owner ended, and its memory with it
                pickle.loads(data)
                opened += 1
        torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]
        return opened

    def _task(self, reference: str) -> Task:
        if reference not in self._tasks:
            self._tasks[reference] = load_task(reference, Path.cwd(), check=False)
        return self._tasks[reference]
