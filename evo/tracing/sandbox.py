"""Runs functions in disposable child processes under limits, and says what the isolation covers.

A `ForkServer` is one process with torch and triton already imported and no GPU, and a guard that tidies up after it. Every call forks a
child that puts itself under the layers below, runs one function of ours by dotted name on plain JSON data, answers through a pipe and
ends. The server and its caller exchange JSON only, so nothing a child makes is ever unpickled. `abilities` measures which layers this
machine has, `evo.tracing.probes` attacks them.

What stops what, where Linux offers it:

* secrets in our environment: a fresh environment; an own /proc (or Landlock) hides those of other processes.
* our processes (signals, tracing, memory): a process namespace per call, Landlock (Linux 6.12), another user (as root), seccomp.
* our files (store, keys, code, home): Landlock (Linux 5.19), else a root folder of its own made of read-only mounts. Readable are the
  interpreter, installed packages, packages in the folder a run was started in, system libraries and tools, a few files of /etc.
  Writable is the working folder.
* the network: seccomp refuses all sockets but unix ones (those too, without a GPU), besides a network namespace and Landlock.
* more rights: no new privileges, no capability, as root a user of its own (65534). Where the interpreter or a package lies in a private
  folder, that user keeps one capability, to read what is private (`evo.tracing.privileges`), within what files are granted.
* attacks on the kernel: seccomp refuses some 70 calls (`evo.tracing.seccomp`); what is left is what torch, compilers and CUDA use.
* too much: limits of address space, CPU seconds, size of files, open files and processes; memory and number of all processes together,
  looked at ten times a second; a working folder in memory of bounded size; a wall deadline; `max_reply_bytes`.
* outliving: what a child started dies with its process namespace (else its group, and by a subreaper), a child with its server, a
  server with its caller, and the guard removes their files.
* leaving something for the next call: nothing outlives a call but what it wrote into a folder that the caller gave.

What is not covered anywhere: bugs of the kernel and, with a GPU, of its driver, of which a child may use all device files; side
channels (time, caches, load); what lies in readable places, such as another package's files; the names, sizes and dates of files
whose path is known, and names in the folder a run was started in; CPU time within the limit; the size of all files together in a
folder that the caller gave; between two looks, memory beyond the sum that the limit of each process leaves; SIGCONT to our session.

By platform: as root or as a user with user namespaces, all of the above. Where a container refuses namespaces (Docker's default
profile): no process namespace (other users' processes and ours are told apart by Landlock and by user), no bound on a working folder,
and as an unprivileged user no limit of processes but the watched number. gVisor: no Landlock; namespaces and a root of its own where it has
them. Without Landlock, namespaces and root, a child may read and write what our user may, and signal it: do not run untrusted code so.
Other processors than x86_64 and aarch64: no seccomp and no Landlock. Landlock's first version (Linux 5.13 to 5.18) is not used, since it
forbids renames that compilers' caches need; there a root of its own does its work.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evo.errors import SandboxError, WorkerDied
from evo.tracing.confinement import FILTERED, Limits, abilities, apply_limits
from evo.tracing.kernel import PR_SET_PDEATHSIG
from evo.tracing.zygote import Process, Zygote

__all__ = [
    "FILTERED",
    "PR_SET_PDEATHSIG",
    "ForkServer",
    "Limits",
    "abilities",
    "apply_limits",
    "receive_message",
    "search_path",
    "send_message",
]

KEPT_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "TZ")
ENDING_S = 10.0
"""After which a server that was asked to end is killed."""


def search_path() -> str:
    """This process's module search path, absolute, for a child with another working folder."""
    return os.pathsep.join(dict.fromkeys(os.path.abspath(entry) for entry in sys.path))


class ForkServer:
    """A warm process that runs functions in forked, limited children. One call at a time; `start` may run beside it.

    Args:
        role: Name for messages, e.g. ``trace``.
        limits: For every child.
        preload: Modules the server imports before the first call.
        environment: Set in the server besides a few harmless variables of ours (see `KEPT_ENVIRONMENT`).
        gpu: Whether children may use the devices that CUDA_VISIBLE_DEVICES of the caller names. The server itself never touches one.
        zygote: Forks the server, which then need not import anything; to be closed after it. None: the server is a new process.
    """

    def __init__(
        self,
        role: str,
        limits: Limits,
        *,
        preload: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        gpu: bool = False,
        zygote: Zygote | None = None,
    ) -> None:
        self.role = role
        self._limits = limits
        self._preload = preload
        self._environment = dict(environment or {})
        self._gpu = gpu
        self._zygote = zygote
        self._process: Process | None = None
        self._socket: socket.socket | None = None
        self._home: Path | None = None
        self._starting = threading.Lock()

    def call(
        self, function: str, request: Mapping[str, Any], *, deadline_s: float, scratch: Path | None = None
    ) -> dict[str, Any]:
        """Runs ``module:function`` of ours on `request` in a fresh child.

        Args:
            function: Dotted module, colon, function name; the function takes and returns a JSON dict.
            request: Plain JSON values.
            deadline_s: Wall seconds, after which the child is killed.
            scratch: The child's working folder; a private one that is removed afterwards if None.

        Returns:
            What the function returned: data of a possibly hostile process, to be validated.

        Raises:
            WorkerDied: Deadline, signal, exit or an oversized answer. The server itself stays usable.
            SandboxError: The server cannot be started.
        """
        message = {
            "function": function,
            "request": request,
            "deadline_s": deadline_s,
            "scratch": None if scratch is None else str(scratch),
        }
        connection = self._ensure()
        try:
            send_message(connection, message)
            reply = receive_message(connection)
        except (OSError, EOFError) as error:
            self.close()
            raise WorkerDied(self.role, f"the fork server ended ({error})") from error
        except RecursionError as error:  # all of it was received: the next answer is in its place
            raise WorkerDied(self.role, "malformed answer") from error
        if "died" in reply:
            raise WorkerDied(self.role, str(reply["died"]))
        payload = reply.get("payload")
        if not isinstance(payload, dict):
            raise WorkerDied(self.role, "malformed answer")
        return payload

    def start(self) -> None:
        """Starts the server ahead of the first call. Idempotent."""
        self._ensure()

    def close(self) -> None:
        """Ends the server and its child. Idempotent."""
        # Taken first: whoever owns the server may close it while the thread that calls it does.
        process, connection, home = self._process, self._socket, self._home
        self._process = self._socket = self._home = None
        if connection is not None:
            connection.close()
        if process is not None:
            process.terminate()  # its process ends all others, and waits for them
            try:
                process.wait(ENDING_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if home is not None:
            shutil.rmtree(home, ignore_errors=True)

    def _ensure(self) -> socket.socket:
        with self._starting:
            return self._started()

    def _started(self) -> socket.socket:
        if self._socket is not None and self._process is not None and self._process.poll() is None:
            return self._socket
        self.close()
        ours, theirs = socket.socketpair()
        self._home = home = Path(tempfile.mkdtemp(prefix=f"triton-evolve-{self.role}-"))
        home.chmod(0o711)
        environment = {key: os.environ[key] for key in KEPT_ENVIRONMENT if key in os.environ}
        environment |= {"HOME": str(home), "TMPDIR": str(home), "TRITON_CACHE_DIR": str(home / "triton")}
        environment |= {
            "TRITON_EVOLVE_ROLE": self.role,
            "TRITON_EVOLVE_HOME": os.path.expanduser("~"),
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        if not self._gpu:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        elif "CUDA_VISIBLE_DEVICES" in os.environ:
            environment["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]
        environment |= {"TRITON_DEFAULT_FP_FUSION": os.environ.get("TRITON_DEFAULT_FP_FUSION", "1")} | self._environment
        environment["PYTHONPATH"] = search_path()
        settings = {"limits": asdict(self._limits), "preload": self._preload, "home": str(home), "gpu": self._gpu}
        self._socket = ours
        launch = _new_process if self._zygote is None else self._zygote.launch
        try:
            self._process = launch(settings, environment, theirs)
        except BaseException:  # Ctrl-C, too: nobody else would remove the folder
            self.close()
            raise
        finally:
            theirs.close()
        try:
            receive_message(ours)  # the server says when its imports are done
        except (OSError, EOFError) as error:
            self.close()
            raise SandboxError(f"the {self.role} sandbox does not start; run with TRITON_EVOLVE_DEBUG=1 to see why") from error
        return ours


def _new_process(settings: Mapping[str, Any], environment: Mapping[str, str], connection: socket.socket) -> Process:
    return subprocess.Popen(
        [sys.executable, "-m", "evo.tracing.forkserver", str(connection.fileno()), json.dumps(settings)],
        pass_fds=(connection.fileno(),),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=None if os.environ.get("TRITON_EVOLVE_DEBUG") else subprocess.DEVNULL,
        env=environment,
        cwd=settings["home"],
    )


def send_message(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """Sends one length-prefixed JSON message."""
    data = json.dumps(message).encode()
    connection.sendall(len(data).to_bytes(8, "little") + data)


def receive_message(connection: socket.socket) -> dict[str, Any]:
    """Receives one message of `send_message`.

    Raises:
        EOFError: The other side closed.
    """
    size = int.from_bytes(_receive(connection, 8), "little")
    message: dict[str, Any] = json.loads(_receive(connection, size))
    return message


def _receive(connection: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size > 0:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            raise EOFError("closed")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
