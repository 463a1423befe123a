"""Warm, trusted processes with a deadline: a nursery with torch imported forks them, so a dead one is replaced in under a second.

A worker with a *spare* has a second process that waits with its device context ready and takes over at once; the spare is made as soon
as the first process has answered, at the price of one idle context (about half a gigabyte of device memory): a fault is the moment at which
nobody should wait for a context. A deadline counts from the moment at which a process is ready, so that no work pays for a context.
Processes are ended through pidfds where the kernel has them, so never a stranger of the same number.

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
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from evo.errors import SandboxError, WorkerDied, WorkerNotReady, WorkerOutOfMemory
from evo.tracing.sandbox import PR_SET_PDEATHSIG, search_path

START_DEADLINE_S = 120.0
"""For a process to be ready. A device context takes a second or two, and ten on a host with many devices."""
READY = "is ready"
"""Asked of each new process: it answers once it has made what it serves."""


@dataclass
class _Process:
    """One forked worker. `handle` is its pidfd, None on kernels without; `ready` once it has answered."""

    pid: int
    handle: int | None
    connection: Connection
    ready: bool = False

    @property
    def ended(self) -> bool:
        """Whether its end of the connection is closed; asked only while it owes no answer."""
        try:
            return self.connection.poll(0)
        except OSError:
            return True

    def kill(self) -> None:
        self.connection.close()
        with contextlib.suppress(ProcessLookupError):
            if self.handle is None:
                os.kill(self.pid, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(self.handle, signal.SIGKILL)
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None


class Nursery:
    """Forks workers, for any thread. It has torch and triton imported and never touches a device itself."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        environment = {**os.environ, "PYTHONPATH": search_path()}
        self._socket = ours
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "evo.evaluation.worker", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            env=environment,
        )
        theirs.close()

    def fork(self, factory: str) -> _Process:
        """A new worker that serves the object `factory` (``module:name``, called without arguments) makes.

        Raises:
            SandboxError: The nursery died.
        """
        ours, theirs = socket.socketpair()
        try:
            with self._lock:
                socket.send_fds(self._socket, [factory.encode()], [theirs.fileno()])
                answer, handles, _, _ = socket.recv_fds(self._socket, 64, 1)
        except OSError as error:
            ours.close()
            raise SandboxError(f"the nursery of workers ended: {error}") from error
        finally:
            theirs.close()
        if not answer:
            ours.close()
            raise SandboxError("the nursery of workers ended; run with TRITON_EVOLVE_DEBUG=1 to see why")
        return _Process(int(answer), handles[0] if handles else None, Connection(ours.detach()))

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
        spare: Whether a second process is kept ready.

    Attributes:
        generation: How many processes there have been; whatever one knew, the next does not.
        told: What the newest call was at when it answered or died, see `tell`.
    """

    def __init__(self, nursery: Nursery, role: str, factory: str, *, spare: bool = False) -> None:
        self._nursery = nursery
        self.role = role
        self._factory = factory
        self._keeps_spare = spare
        self._process: _Process | None = None
        self._spare: _Process | None = None
        self.generation = 0
        self.told = ""

    def call(self, method: str, *arguments: Any, deadline_s: float) -> Any:
        """Calls a method of the worker's object.

        Args:
            method, arguments: What to call.
            deadline_s: For the answer, anew from each time that the worker tells where it is.

        Raises:
            WorkerNotReady: No process could be made ready; nothing was called.
            WorkerOutOfMemory: Its device's memory did not suffice.
            WorkerDied: It did not answer in time, died, or said that its device is poisoned. The next call gets a new process.
        """
        process = self._ensure()
        self.told = ""
        try:
            if not process.ready:
                self._make_ready(process)
            answer = self._ask(process, (method, arguments), deadline_s)
        except WorkerDied:
            self._end()
            raise
        if self._keeps_spare and self._spare is None:
            self._spare = self._nursery.fork(self._factory)
        return answer

    def _make_ready(self, process: _Process) -> None:
        try:
            self._ask(process, (READY, ()), START_DEADLINE_S)
        except WorkerDied as error:
            late = f"it was not ready within {START_DEADLINE_S:g} s"
            raise WorkerNotReady(self.role, late if error.reason == "deadline" else error.reason) from error
        process.ready = True

    def _ask(self, process: _Process, request: tuple[str, tuple[Any, ...]], deadline_s: float) -> Any:
        try:
            process.connection.send_bytes(pickle.dumps(request))
            while True:
                if not process.connection.poll(deadline_s):
                    raise WorkerDied(self.role, "deadline")
                kind, answer = pickle.loads(process.connection.recv_bytes())
                if kind != "told":
                    break
                self.told = answer
        except (EOFError, OSError) as error:
            raise WorkerDied(self.role, f"died ({error or type(error).__name__})") from error
        if kind == "memory":
            raise WorkerOutOfMemory(self.role, answer)
        if kind == "fatal":
            raise WorkerDied(self.role, answer)
        return answer

    @property
    def started(self) -> bool:
        """Whether there is a process that can answer without being made first."""
        return self._process is not None

    def stop(self) -> None:
        """Ends its processes. Idempotent."""
        self._end()
        if self._spare is not None:
            self._spare.kill()
            self._spare = None

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _ensure(self) -> _Process:
        if self._process is None:
            spare, self._spare = self._spare, None
            if spare is not None and spare.ended:
                spare.kill()
                spare = None
            self._process = spare or self._nursery.fork(self._factory)
            self.generation += 1
        return self._process


_callers: list[Connection] = []
"""In a worker: the one connection that it serves."""


def tell(text: str) -> None:
    """Inside of a worker: says where it is in a long call. That gives it another deadline, and a name to what goes wrong there."""
    for connection in _callers:
        connection.send_bytes(pickle.dumps(("told", text)))


def serve(connection: Connection, target: object) -> None:
    """The worker's loop. Any exception is the device's or ours: it is told and ends the process, since a context may be poisoned, and
    memory may be full of what only its end frees."""
    _callers[:] = [connection]
    while True:
        try:
            method, arguments = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        function: Callable[..., Any] = bool if method == READY else getattr(target, method)
        try:
            answer = ("ok", function(*arguments))
        except Exception as error:
            connection.send_bytes(pickle.dumps(_ending(error)))
            raise
        connection.send_bytes(pickle.dumps(answer))


def _ending(error: Exception) -> tuple[str, str]:
    """How an exception is told. Torch has a type for too little memory; drivers and libraries that it calls say so in words."""
    text = f"{type(error).__name__}: {error}"
    return ("memory" if type(error).__name__ == "OutOfMemoryError" or "out of memory" in text else "fatal"), text


def nursery_loop(control: socket.socket) -> None:
    """Forks a worker for every message that brings its socket, until the owner closes the connection or dies. The death of a parent would
    be that of the thread which started this process, and threads come and go."""
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
            _work(Connection(descriptors[0]), message.decode())
            os._exit(0)
        os.close(descriptors[0])
        handle = _handle_of(pid)
        socket.send_fds(control, [str(pid).encode()], [] if handle is None else [handle])
        if handle is not None:
            os.close(handle)


def _work(connection: Connection, factory: str) -> None:
    module, _, name = factory.partition(":")
    try:
        target = getattr(importlib.import_module(module), name)()
    except Exception as error:
        connection.recv_bytes()  # the answer belongs to the first request; until then a spare that failed looks like any other
        kind, text = _ending(error)
        connection.send_bytes(pickle.dumps((kind, f"cannot start: {text}")))
        raise
    serve(connection, target)


def _handle_of(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # a kernel or a sandbox without pidfds, or a child that has ended already
        return None


if __name__ == "__main__":
    if not os.environ.get("TRITON_EVOLVE_DEBUG"):
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  for the life of the process
    # Not this module's own: whatever workers import of `evo.evaluation.worker` must be what serves them.
    importlib.import_module("evo.evaluation.worker").nursery_loop(socket.socket(fileno=int(sys.argv[1])))
