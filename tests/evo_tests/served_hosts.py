"""Stand-ins for the host of modules in use: hosts that end while they look at one."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch

from evo.evaluation.hosted_host import CpuHost, Observed
from evo.evaluation.hosted_sides import HostedWork
from evo.records import Failure


class Ending(CpuHost):
    """Ends each time that it looks at a module, as if that had taken all memory; a file beside the task counts."""

    def observe(self, work: HostedWork, *arguments: Any) -> Observed | Failure:
        with Path(work.task).with_suffix(".looks").open("a") as looks:
            looks.write("x")
        os.kill(os.getpid(), signal.SIGKILL)
        return super().observe(work, *arguments)


class EndingOnce(Ending):
    """Ends at the first look; the second one is real."""

    def observe(self, work: HostedWork, *arguments: Any) -> Observed | Failure:
        return (CpuHost if Path(work.task).with_suffix(".looks").exists() else Ending).observe(self, work, *arguments)


class FullOnce(CpuHost):
    """Finds no memory at the first latency; the next process does."""

    def latency_us(self, work: HostedWork, *arguments: Any) -> float | Failure:
        try:
            Path(work.task).with_suffix(".full").touch(exist_ok=False)
        except FileExistsError:
            return 7.0
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


class Unmakeable:
    """A device that is not there."""

    def __init__(self) -> None:
        raise RuntimeError("no CUDA-capable device is detected")
