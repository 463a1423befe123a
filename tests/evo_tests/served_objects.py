"""What tests let workers serve: objects that answer, hang, die, tell where they are, or cannot be made."""

from __future__ import annotations

import ctypes
import os
import signal
import time

import torch

from evo.evaluation.worker import tell


class Served:
    """Answers with its process and how long it has lived."""

    def __init__(self) -> None:
        self._made = time.monotonic()

    def pid(self) -> int:
        return os.getpid()

    def age_s(self) -> float:
        return time.monotonic() - self._made

    def hang(self) -> None:
        time.sleep(600)

    def refuse_to_end(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(600)

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def crash(self) -> None:
        ctypes.string_at(0)

    def fail(self) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def need_memory(self, how: str) -> None:
        if how == "torch":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        raise RuntimeError("Triton Error [CUDA]: out of memory")

    def steps(self, count: int, seconds: float) -> int:
        """Tells of each step; the last one is called the last."""
        for number in range(count):
            tell(f"step {number}")
            time.sleep(seconds)
        return count

    def hang_at(self, text: str) -> None:
        tell(text)
        time.sleep(600)


class SlowToStart(Served):
    """As one that makes a device context."""

    def __init__(self) -> None:
        time.sleep(1.0)
        super().__init__()


class Unmakeable:
    """A device that is not there."""

    def __init__(self) -> None:
        raise RuntimeError("no CUDA-capable device is detected")
