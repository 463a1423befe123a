"""A process that has imported torch and Inductor, and forks for each reference: imports take longer than most references.

Who asks has it to himself; where several references are asked about (`kept_warm`), as many are kept as threads ask at once. What a fork
changes of itself ends with it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evo.errors import WorkerDied

PRELOADED = ("evo.seeding.child", "torch._inductor.compile_fx", "torch._inductor.select_algorithm")
"""What every fork would import; none of it looks for a device."""


class WarmProcess:
    """Owns the process. Not thread-safe.

    Args:
        environment: Of the process, which its imports read; each call adds its own.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "evo.seeding.warm"], env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    @property
    def lives(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def call(self, question: Path, answer: Path, environment: Mapping[str, str], deadline_s: float) -> int | None:
        """Answers a request of `evo.seeding.child` in a fork that works in the folder of its question, and writes there what it says.

        Returns:
            The fork's status; None where it took too long and was ended, with all that it started.

        Raises:
            WorkerDied: The process ended.
        """
        request = {"question": str(question), "answer": str(answer), "environment": dict(environment)}
        try:
            self._send(request)
            pid = int(self._receive(None))
            try:
                return int(self._receive(deadline_s))
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                self._receive(None)
                return None
        except (OSError, ValueError) as error:
            self.close()
            raise WorkerDied("seeding", "the process that imports Inductor ended") from error

    def close(self) -> None:
        """Ends it, and a fork that still works."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _send(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()

    def _receive(self, seconds: float | None) -> bytes:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            raise TimeoutError
        line = self._process.stdout.readline()
        if not line:
            raise ValueError("the end")
        return line


class _Kept:
    """Processes that nobody asks at the moment, while somebody wants them kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted = 0
        self._idle: list[WarmProcess] = []

    def want(self, more: int) -> None:
        """More want them kept; or fewer, and when none does they end."""
        with self._lock:
            self._wanted += more
            ended, self._idle = ([], self._idle) if self._wanted else (self._idle, [])
        for process in ended:
            process.close()

    def take(self) -> WarmProcess | None:
        """One of them."""
        with self._lock:
            return self._idle.pop() if self._idle else None

    def put(self, process: WarmProcess) -> None:
        """Keeps it, or ends it."""
        with self._lock:
            if kept := self._wanted > 0 and process.lives:
                self._idle.append(process)
        if not kept:
            process.close()


_KEPT = _Kept()


@contextmanager
def kept_warm() -> Iterator[None]:
    """Processes that were asked are kept for the next question meanwhile."""
    _KEPT.want(1)
    try:
        yield
    finally:
        _KEPT.want(-1)


@contextmanager
def warm_process(environment: Mapping[str, str]) -> Iterator[WarmProcess]:
    """One that nobody else asks meanwhile."""
    process = _KEPT.take() or WarmProcess(environment)
    try:
        yield process
    finally:
        _KEPT.put(process)


def serve() -> None:
    """Imports, then forks for each line of standard input, one after the other, until it ends."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what imports print is no answer
    for module in PRELOADED:
        importlib.import_module(module)
    while line := sys.stdin.buffer.readline():
        pid = os.fork()
        if pid == 0:
            _answer(json.loads(line))
        out.write(b"%d\n" % pid)
        ended, poll = os.pidfd_open(pid), select.poll()
        poll.register(ended, select.POLLIN)
        poll.register(0, 0)  # only whether who asked is gone
        poll.poll()
        gone = not select.select([ended], [], [], 0)[0]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # a whole session, and what it leaves
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(ended)
        if gone:
            return
        out.write(b"%d\n" % status)


def _answer(request: Mapping[str, Any]) -> None:
    """What a fork does."""
    status = 1
    try:
        os.setsid()
        folder = Path(request["question"]).parent
        said = os.open(folder / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for stream in (1, 2):
            os.dup2(said, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(request["environment"])
        tempfile.tempdir = None
        known = set(sys.path)
        sys.path += [place for place in request["environment"]["PYTHONPATH"].split(os.pathsep) if place not in known]
        from evo.seeding.child import main

        main(request["question"], request["answer"])
        status = 0
    except BaseException:  # noqa: BLE001  said where the one who asked reads it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve()
