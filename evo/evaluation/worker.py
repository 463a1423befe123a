"""Warm, trusted processes with a deadline: a nursery with torch imported forks them, so a dead one is replaced in under a second.

A worker runs code of ours only (replay of validated plans, the judge). It may still die (an illegal access poisons its CUDA context,
a kernel may hang), so the caller gets WorkerDied and the next call a new process. Messages between these processes are pickled: both
ends are ours and no candidate code runs in either.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from evo.errors import SandboxError, WorkerDied
from evo.tracing.sandbox import PR_SET_PDEATHSIG, search_path


class Nursery:
    """Forks workers. It has torch and triton imported and never touches a device itself."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        environment = {**os.environ, "PYTHONPATH": search_path()}
        self._socket = ours
        self._process = subprocess.Popen(
            [sys.executable, "-m", "evo.evaluation.worker", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            env=environment,
        )
        theirs.close()

    def fork(self, factory: str) -> tuple[int, Connection]:
        """A new worker that serves the object `factory` (``module:name``, called without arguments) makes.

        Raises:
            SandboxError: The nursery died.
        """
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self._socket, [factory.encode()], [theirs.fileno()])
            answer = self._socket.recv(64)
        except OSError as error:
            raise SandboxError(f"the nursery of workers ended: {error}") from error
        finally:
            theirs.close()
        if not answer:
            raise SandboxError("the nursery of workers ended; run with TRITON_EVOLVE_DEBUG=1 to see why")
        return int(answer), Connection(ours.detach())

    def close(self) -> None:
        """Ends the nursery and with it all workers. Idempotent."""
        self._socket.close()
        self._process.kill()
        self._process.wait()


class Worker:
    """One replaceable worker. Not thread-safe.

    Args:
        nursery: Where processes come from.
        role: For messages.
        factory: See `Nursery.fork`.
    """

    def __init__(self, nursery: Nursery, role: str, factory: str) -> None:
        self._nursery = nursery
        self.role = role
        self._factory = factory
        self._pid = 0
        self._connection: Connection | None = None

    def call(self, method: str, *arguments: Any, deadline_s: float) -> Any:
        """Calls a method of the worker's object.

        Raises:
            WorkerDied: It did not answer in time, died, or said that its device is poisoned; the next call gets a new process.
        """
        connection = self._ensure()
        try:
            connection.send_bytes(pickle.dumps((method, arguments)))
            if not connection.poll(deadline_s):
                raise WorkerDied(self.role, "deadline")
            answer = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError) as error:
            self.stop()
            raise WorkerDied(self.role, f"died ({error or type(error).__name__})") from error
        except WorkerDied:
            self.stop()
            raise
        if answer[0] == "fatal":
            self.stop()
            raise WorkerDied(self.role, answer[1])
        return answer[1]

    def stop(self) -> None:
        """Ends the process. Idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def _ensure(self) -> Connection:
        if self._connection is None:
            self._pid, self._connection = self._nursery.fork(self._factory)
        return self._connection


def serve(connection: Connection, target: object) -> None:
    """The worker's loop. Any exception is the device's or ours: it is told and ends the process, since a context may be poisoned."""
    while True:
        try:
            method, arguments = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        function: Callable[..., Any] = getattr(target, method)
        try:
            answer = ("ok", function(*arguments))
        except Exception as error:
            connection.send_bytes(pickle.dumps(("fatal", f"{type(error).__name__}: {error}")))
            raise
        connection.send_bytes(pickle.dumps(answer))


def nursery_loop(control: socket.socket) -> None:
    """Forks a worker for every message that brings its socket."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # dead workers are reaped by the kernel
    for module in ("torch", "triton", "evo.evaluation.judge", "evo.evaluation.runner"):
        importlib.import_module(module)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 4096, 1)
        if not message:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            module, _, name = message.decode().partition(":")
            serve(Connection(descriptors[0]), getattr(importlib.import_module(module), name)())
            os._exit(0)
        os.close(descriptors[0])
        control.send(str(pid).encode())


if __name__ == "__main__":
    if not os.environ.get("TRITON_EVOLVE_DEBUG"):
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  for the life of the process
    nursery_loop(socket.socket(fileno=int(sys.argv[1])))
