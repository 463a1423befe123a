"""Stand-ins for the replay process and the judge of a GPU machine: no device, but every fault that one can have."""

from __future__ import annotations

import dataclasses
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from evo.evaluation.checking import Differs
from evo.evaluation.health import Reading
from evo.evaluation.replay_messages import Compared, Missing, Ran, Work
from evo.evaluation.tolerance import Verdict
from evo.evaluation.worker import tell
from evo.records import Failure, Stage, Status
from evo.tasks.draws import Draw
from evo.tracing.compiler import Binary


def once(work_task: str, name: str) -> bool:
    """Whether this is the first process to get here; the task's path names a folder that remembers."""
    try:
        Path(work_task, name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def fill() -> None:
    """As torch words it."""
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 7.79 GiB of which 1.50 GiB is free. Including"
    )


READING = Reading(sm_mhz=1755, celsius=41)


class Device:
    """A well one. What a plan does is the text that it "returns"."""

    def __init__(self) -> None:
        self._binaries: set[str] = set()
        self._shipped = 0
        self._held = 0

    def describe(self) -> dict[str, Any]:
        return {"name": "Paper GPU", "uuid": "GPU-0", "capability": (9, 0), "sms": 1, "nvml": False}

    def probe(self) -> bytes:
        return b""

    def health(self) -> str:
        return ""

    def read(self) -> Reading:
        return Reading(errors={"uncorrected ECC errors": 2})

    def counts(self) -> dict[str, int]:
        return {"shipped": self._shipped}

    def release(self, tokens: Sequence[int], trim: bool = False) -> None:
        pass

    def restore_inputs(self, asked: Sequence[tuple[Work, Draw]]) -> bool:
        return not once(asked[0][0].task, "spoiled") if asked[0][0].plan.outputs == "spoiled" else True

    def check(self, asked: Sequence[tuple[Work, Draw, int]], by_ipc: bool, released: Sequence[int]) -> Any:
        missing = self._missing([work for work, _, _ in asked])
        return missing or [self._ran(number, work) for number, (work, _, _) in enumerate(asked)]

    def latency(self, work: Work, seed: int, replays: int, worth_us: float) -> Any:
        if work.plan.outputs == "too large":
            fill()
        return self._missing([work]) or 10.0

    def compare(
        self, sides: Sequence[tuple[Work, Work]], seeds: Sequence[int], pairs: int, placement: int, order: int, aa: bool
    ) -> Any:
        if sides[0][0].plan.outputs == "too large":
            fill()
        reasons = ("hardware thermal slowdown",) if sides[0][0].plan.outputs == "throttles" and not aa else ()
        one = Compared((10.0,) * pairs, (11.0,) * pairs, sides[0][0].plan.outputs != "cheats", 0, reasons, READING)
        return self._missing([work for pair in sides for work in pair]) or [one] * len(sides)

    def _ran(self, token: int, work: Work) -> Ran:
        tell(work.case)
        match work.plan.outputs:
            case "hangs":
                time.sleep(600)
            case "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            case "dies on training" if "x4096" in work.case or "4096x" in work.case:
                os.kill(os.getpid(), signal.SIGKILL)
            case "crowds" if self._held:
                fill()
            case "crowds":
                self._held += 1
            case "too large":
                fill()
            case "writes":
                return Ran(token, "*", b"", 2, (), Differs.NOT, 0)
            case "changes":
                return Ran(token, "*", b"", 0, (0, "weight"), Differs.NOT, 0)
            case "races" | "reads" | "leaves" as fault:
                differs = {"races": Differs.RACE, "reads": Differs.BEYOND, "leaves": Differs.UNDEFINED}
                return Ran(token, "*", b"", 0, (), differs[fault], 0)
        return Ran(token, str(work.plan.outputs), b"", 0, (), Differs.NOT, 4096)

    def _missing(self, works: Sequence[Work]) -> Missing | None:
        for work in works:
            for binary in work.binaries:
                if isinstance(binary, Binary):
                    self._binaries.add(binary.kernel_hash)
                    self._shipped += 1
        hashes = {binary for work in works for binary in work.binaries if isinstance(binary, str)}
        return Missing(tuple(hashes - self._binaries)) if hashes - self._binaries else None


class Forgetful(Device):
    """Drops its binaries after each check."""

    def check(self, *arguments: Any) -> Any:
        answer = super().check(*arguments)
        self._binaries.clear()
        return answer


class Lender(Device):
    """Lends outputs by CUDA IPC: a file in the task's folder stands for memory that is kept until it was opened."""

    def check(self, *arguments: Any) -> Any:
        answer = super().check(*arguments)
        if isinstance(answer, Missing):
            return answer
        lent = [Path(work.task, f"lent-{number}") for number, (work, _, _) in enumerate(arguments[0])]
        for path in lent:
            path.touch()
        return [dataclasses.replace(ran, outputs=str(path).encode()) for ran, path in zip(answer, lent, strict=True)]


class Sick(Device):
    """Its memory does not keep what is written."""

    def health(self) -> str:
        return "7 of 16777216 words of memory do not keep the pattern 0x55"


def breakage(nursery: int) -> Path:
    """A file by which the processes of a nursery know that their device broke."""
    return Path(tempfile.gettempdir(), f"paper-gpu-{os.getuid()}-{nursery}")


class Breaks(Sick):
    """Well until a kernel kills its process."""

    def health(self) -> str:
        return super().health() if breakage(os.getppid()).exists() else ""

    def _ran(self, token: int, work: Work) -> Ran:
        if work.plan.outputs == "dies":
            breakage(os.getppid()).touch()
        return super()._ran(token, work)


class Tiny(Device):
    """Has no room for inputs."""

    def restore_inputs(self, asked: Sequence[tuple[Work, Draw]]) -> bool:
        fill()
        return True

    def compare(self, *arguments: Any) -> Any:
        fill()


class Slow(Device):
    """Takes longer to start than any run may take."""

    def __init__(self) -> None:
        time.sleep(2.0)
        super().__init__()


class Judge:
    """Passes everything but what a plan says it should not."""

    def open_probe(self, data: bytes) -> bool:
        return False

    def judge(self, task: str, case: str, draw: Draw, structure: str, data: bytes, stage: str) -> Verdict | Failure:
        if structure == "kills every judge" or (structure == "kills a judge" and once(task, "judge")):
            os.kill(os.getpid(), signal.SIGKILL)
        if structure == "wrong" or (structure == "spoiled" and not Path(task, "spoiled").exists()):
            return Failure(Status.WRONG_VALUES, Stage(stage), f"case {case}: expected 1, got 2", "wrong_values:values")
        return Verdict(0.5, "")


class Borrower(Judge):
    """Opens what is lent to it."""

    def open_probe(self, data: bytes) -> bool:
        return True

    def judge(self, task: str, case: str, draw: Draw, structure: str, data: bytes, stage: str) -> Verdict | Failure:
        self.drop([data])
        return super().judge(task, case, draw, structure, data, stage)

    def drop(self, outputs: Sequence[bytes]) -> int:
        for data in outputs:
            Path(data.decode()).unlink()
        return len(outputs)


class TinyJudge(Judge):
    """Has no room for expected values."""

    def judge(self, task: str, case: str, draw: Draw, structure: str, data: bytes, stage: str) -> Verdict | Failure:
        fill()
        return Verdict(0.5, "")
