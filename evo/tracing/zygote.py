"""Starts fork servers of one role as forks of one process that has imported everything: the second costs milliseconds, no memory.

The process behind a `Zygote` does nothing but import and fork, and sees requests of ours alone: no candidate code, no data of a sandbox.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from evo.errors import SandboxError

MAX_MESSAGE_BYTES = 1 << 17
"""Settings and environment of one server, in JSON."""


class Process(Protocol):
    """What an owner of a server needs of its process; `subprocess.Popen` is one."""

    def poll(self) -> int | None:
        """None while it lives."""

    def terminate(self) -> None:
        """Asks it to end."""

    def kill(self) -> None:
        """Ends it."""

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end.

        Raises:
            subprocess.TimeoutExpired: It lives on.
        """


class Offspring:
    """A process that a zygote forked, known by a descriptor, which never comes to mean another process as a number may."""

    def __init__(self, pidfd: int) -> None:
        self._pidfd = pidfd

    def __del__(self) -> None:
        os.close(self._pidfd)

    def poll(self) -> int | None:
        """None while it lives, else 0: its status is the zygote's to know."""
        return 0 if self._ended(0) else None

    def terminate(self) -> None:
        """Asks it to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it."""
        self._signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end.

        Raises:
            subprocess.TimeoutExpired: It lives on.
        """
        if not self._ended(timeout):
            raise subprocess.TimeoutExpired("a fork server", timeout or 0.0)
        return 0

    def _ended(self, timeout: float | None) -> bool:
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(None if timeout is None else timeout * 1000))

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)


class Zygote:
    """Owns the process that servers of one role are forked from, once the first is wanted. Thread-safe.

    Args:
        role: Name for messages and folders, e.g. ``trace``.
    """

    def __init__(self, role: str) -> None:
        self._role = role
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._home: Path | None = None
        self._closed = False
        self._lock = threading.Lock()

    def launch(self, settings: Mapping[str, Any], environment: Mapping[str, str], connection: socket.socket) -> Process:
        """Forks a server.

        Args:
            settings: As `evo.tracing.forkserver.guard` takes them; equal for all servers of a zygote but for ``home``.
            environment: The server's; as it is read at import, equal for all of them but for folders.
            connection: The server's end of its connection to its owner, who keeps its own copy.

        Raises:
            SandboxError: The zygote does not start, or was closed.
        """
        message = json.dumps({"settings": settings, "environment": dict(environment)}).encode()
        with self._lock:
            pidfd = self._fork(message, connection) if self._lives() else None
            if pidfd is None and not self._closed:
                self._start(settings, environment)
                pidfd = self._fork(message, connection)
            if pidfd is None:
                self._end()
                raise SandboxError(f"the {self._role} sandbox does not start; run with TRITON_EVOLVE_DEBUG=1 to see why")
        return Offspring(pidfd)

    def close(self) -> None:
        """Ends the process, and with it all servers that still live; it starts no more. Idempotent."""
        self._closed = True
        if (process := self._process) is not None:
            process.terminate()  # who waits for it under the lock waits no more
        with self._lock:
            self._end()

    def _lives(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _fork(self, message: bytes, connection: socket.socket) -> int | None:
        """A descriptor of a new server's process; None if the zygote ended."""
        assert self._control is not None
        try:
            socket.send_fds(self._control, [message], [connection.fileno()])
            _, descriptors, _, _ = socket.recv_fds(self._control, 16, 1)
        except OSError:
            return None
        return descriptors[0] if descriptors else None

    def _start(self, settings: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self._end()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._home = home = Path(tempfile.mkdtemp(prefix=f"triton-evolve-{self._role}-"))
        folders = {"HOME": str(home), "TMPDIR": str(home), "TRITON_CACHE_DIR": str(home / "triton")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "evo.tracing.zygote", str(theirs.fileno()), str(home), *settings["preload"]],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None if os.environ.get("TRITON_EVOLVE_DEBUG") else subprocess.DEVNULL,
            env={**environment, **folders},
            cwd=home,
        )
        theirs.close()
        self._control = ours

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
        self._process = self._control = self._home = None


def serve(control: socket.socket, home: Path, preload: list[str]) -> None:
    """Imports, then forks a server per message until the owner closes the connection or dies."""

    def end(number: int, frame: object) -> None:
        shutil.rmtree(home, ignore_errors=True)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's to handle
    try:
        for module in preload:
            importlib.import_module(module)
        gc.collect()
        gc.freeze()  # forks share these pages
        while True:
            data, descriptors, _, _ = socket.recv_fds(control, MAX_MESSAGE_BYTES, 1)
            if not data:
                return
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # a fork must not end as its zygote does
            pid = os.fork()
            if pid == 0:
                control.close()
                _become(json.loads(data), socket.socket(fileno=descriptors[0]))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            os.close(descriptors[0])
            pidfd = os.pidfd_open(pid)  # not yet waited for, so it is there even if it ended
            socket.send_fds(control, [b"born"], [pidfd])
            os.close(pidfd)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _become(message: dict[str, Any], connection: socket.socket) -> None:
    """Makes a fork the server that was asked for."""
    from evo.tracing.forkserver import guard

    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.environ.clear()
        os.environ.update(message["environment"])
        os.chdir(message["settings"]["home"])
        tempfile.tempdir = None
        guard(connection, message["settings"])
    finally:
        os._exit(1)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]), sys.argv[3:])
