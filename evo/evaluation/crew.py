"""A replay process and its judges: which binaries the one has, which outputs the others are done with, whose turn it is."""

from __future__ import annotations

import dataclasses
import os
import secrets
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from evo.errors import WorkerDied, WorkerNotReady, WorkerOutOfMemory
from evo.evaluation.replay_messages import Missing, Work
from evo.evaluation.stages import StageClock
from evo.evaluation.tolerance import Verdict
from evo.evaluation.worker import Nursery, Worker
from evo.records import Failure
from evo.tracing.compiler import Binary

START_DEADLINE_S = 300.0
HEALTH_DEADLINE_S = 60.0


class JudgeFailed(Exception):
    """The judge died, or could not open outputs whose owner died meanwhile."""


@dataclass(frozen=True)
class Processes:
    """What the workers serve, as `evo.evaluation.worker.Nursery.fork` takes it; other classes with the same methods can stand in."""

    replay: str = "evo.evaluation.replay_child:ReplayProcess"
    judge: str = "evo.evaluation.judge_child:JudgeProcess"


REAL_PROCESSES = Processes()


@dataclass(frozen=True)
class _Judge:
    worker: Worker
    turn: Lock


class Crew:
    """These workers. Thread-safe: each serves one call at a time.

    Args:
        nursery: Where they come from.
        deadline_s: Of a call.
        clock: For stages and device seconds.
        spare: Whether a second replay process is kept ready.
        by_ipc: Whether outputs go to the judge by CUDA IPC; `start` finds out.
        processes: What they serve.
        judges: How many of them. Each has its own cases, so that each answer of the oracle is kept once.
    """

    def __init__(
        self,
        nursery: Nursery,
        deadline_s: float,
        clock: StageClock,
        *,
        spare: bool,
        by_ipc: bool = False,
        processes: Processes = REAL_PROCESSES,
        judges: int = 1,
    ) -> None:
        self._deadline_s = deadline_s
        self._clock = clock
        self._replay = Worker(nursery, "replay", processes.replay, spare=spare)
        self._judges = [_Judge(Worker(nursery, "judge", processes.judge), Lock()) for _ in range(judges)]
        self._replaying = Lock()
        self._shipped: set[str] = set()
        self._shipped_to = 0
        self._released: list[int] = []
        self._releasing = Lock()
        self.by_ipc = by_ipc
        self.secret = secrets.token_bytes(16)

    def start(self) -> dict[str, Any]:
        """Starts all and finds out what they can do.

        Returns:
            See `ReplayProcess.describe`, and the device's ``index`` among those of this machine as far as it is known.

        Raises:
            WorkerDied: There is no usable GPU.
        """
        described: dict[str, Any] = self._replay.call("describe", deadline_s=START_DEADLINE_S)
        self.by_ipc = True
        for judge in self._judges:
            probe = self._replay.call("probe", deadline_s=HEALTH_DEADLINE_S)
            self.by_ipc &= bool(judge.worker.call("open_probe", probe, deadline_s=START_DEADLINE_S))
        self._replay.call("release", [0], deadline_s=HEALTH_DEADLINE_S)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return {**described, "index": visible.split(",")[0] or "0"}

    def replay(self, method: str, works: Sequence[Work], arguments: Callable[[list[Work]], tuple[Any, ...]]) -> Any:
        """Calls the replay process about plans; binaries that it has already stay here.

        Args:
            method: Of `ReplayProcess`.
            works: With all binaries.
            arguments: Makes the call's arguments from works with fewer binaries.

        Raises:
            WorkerDied: With what the process was at in `told`.
        """
        with self._clock.stage("wait for replay"):
            self._replaying.acquire()
        try:
            if self._shipped_to != self._replay.generation or not self._replay.started:
                self._shipped.clear()
            answer = self._call(method, arguments([self._light(work) for work in works]))
            if isinstance(answer, Missing):
                answer = self._call(method, arguments(list(works)))
            self._shipped.update(binary.kernel_hash for work in works for binary in work.binaries if isinstance(binary, Binary))
            return answer
        finally:
            self._replaying.release()

    def judge(self, task: str, case: str, *arguments: Any) -> Verdict | Failure:
        """Calls the judge of a case; see `JudgeProcess.judge`.

        Raises:
            WorkerOutOfMemory: What it needs does not fit beside what else the device holds.
            WorkerNotReady: It could not start.
            JudgeFailed: It died. The next call gets a new one.
        """
        judge = self._judges[zlib.crc32(f"{task}:{case}".encode()) % len(self._judges)]
        with self._clock.stage("wait for judge"):
            judge.turn.acquire()
        try:
            with self._clock.stage("judge"), self._clock.device():
                verdict: Verdict | Failure = judge.worker.call("judge", task, case, *arguments, deadline_s=self._deadline_s)
            return verdict
        except (WorkerNotReady, WorkerOutOfMemory) as error:
            error.told = case
            raise
        except WorkerDied as error:
            self._clock.count("judges replaced")
            raise JudgeFailed(str(error)) from error
        finally:
            judge.turn.release()

    def drop(self, outputs: Sequence[bytes]) -> None:
        """Outputs that need no judge any more. Torch keeps memory that is lent by CUDA IPC until it was opened once, whatever `release`
        says, so a judge opens them."""
        if not self.by_ipc or not outputs:
            return
        judge = self._judges[0]
        with judge.turn:
            try:
                judge.worker.call("drop", list(outputs), deadline_s=self._deadline_s)
            except WorkerDied:
                self._clock.count("judges replaced")  # the verdict stands: it is on other outputs

    def release(self, tokens: Sequence[int]) -> None:
        """Outputs that are judged; the replay process is told with its next check."""
        with self._releasing:
            self._released.extend(tokens)

    def take_released(self) -> list[int]:
        """What `release` collected, once."""
        with self._releasing:
            taken, self._released = self._released, []
        return taken

    def trim(self) -> None:
        """Gives back device memory that nobody uses and ends the judges, so that the next ones find room."""
        for judge in self._judges:
            with judge.turn:
                judge.worker.stop()
        with self._replaying:
            try:
                self._call("release", (self.take_released(), True))
            except WorkerDied:
                return  # the next call gets a new one, with more room still

    def restart(self) -> None:
        """Ends all, and so frees all that they hold on the device; the next calls get new ones."""
        for judge in self._judges:
            with judge.turn:
                judge.worker.stop()
        with self._replaying:
            self._replay.stop()

    def ailment(self) -> str:
        """What is wrong with the device, found in a new process if the last one died; empty where it is well.

        Raises:
            WorkerOutOfMemory: There is no memory left to find out.
        """
        with self._replaying:
            try:
                found: str = self._call("health", (), HEALTH_DEADLINE_S)
                reading = self._call("read", (), HEALTH_DEADLINE_S)
            except WorkerOutOfMemory:
                raise
            except WorkerDied as error:
                return f"no answer ({error.reason})"
        errors = ", ".join(f"{count} {name}" for name, count in reading.errors.items())
        return f"{found}; the driver counts {errors}" if found and errors else found

    def counts(self) -> Mapping[str, int]:
        """See `ReplayProcess.counts`; empty where the process does not live."""
        with self._replaying:
            if not self._replay.started:
                return {}
            try:
                counts: Mapping[str, int] = self._replay.call("counts", deadline_s=HEALTH_DEADLINE_S)
            except WorkerDied:
                return {}
        return counts

    def close(self) -> None:
        """Ends all. Idempotent."""
        self._replay.stop()
        for judge in self._judges:
            judge.worker.stop()

    def _call(self, method: str, arguments: tuple[Any, ...], deadline_s: float | None = None) -> Any:
        try:
            with self._clock.device():
                answer = self._replay.call(method, *arguments, deadline_s=deadline_s or self._deadline_s)
        except WorkerDied as error:
            error.told = self._replay.told
            self._clock.count("workers replaced")
            raise
        finally:
            self._shipped_to = self._replay.generation
        return answer

    def _light(self, work: Work) -> Work:
        binaries = tuple(
            item.kernel_hash if isinstance(item, Binary) and item.kernel_hash in self._shipped else item for item in work.binaries
        )
        return dataclasses.replace(work, binaries=binaries)
