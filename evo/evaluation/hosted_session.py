"""The host's side of one candidate process: starts it, talks to it with a deadline, stops it between requests, ends it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evo.errors import SandboxError, WorkerDied
from evo.evaluation.failed import Failed
from evo.evaluation.hosted_child import SOCKET
from evo.records import Failure, Stage, Status
from evo.tracing.sandbox import FILTERED, ForkServer, abilities, send_message

MAX_REPLY_BYTES = 32 << 20
MAX_LIFE_S = 3600.0
"""Longest life of a candidate process, whatever its host does."""
END_S = 20.0


class HostedProcess:
    """One disposable process with a candidate in it. Nothing it answers is believed; see `evo.evaluation.hosted_lending`.

    Args:
        server: Forks it; serves nobody else while this process lives. Started by the caller, in a thread that outlives it.
        request: See `evo.evaluation.hosted_child.serve`.
        deadline_s: For the start, and for requests that name none.

    Raises:
        SandboxError: No process could be started.
    """

    def __init__(self, server: ForkServer, request: Mapping[str, Any], *, deadline_s: float) -> None:
        self._server = server
        self._deadline_s = deadline_s
        self._folder = Path(tempfile.mkdtemp(prefix="hosted-"))
        self._reason = "exit"
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(str(self._folder / SOCKET))
            (self._folder / SOCKET).chmod(0o777)
            listener.listen(1)
            listener.settimeout(deadline_s)
            self._thread = threading.Thread(target=self._serve, args=(server, dict(request)), daemon=True)
            self._thread.start()
            self._connection, _ = listener.accept()
        except OSError as error:
            server.close()  # it may be in a call that nobody will end
            shutil.rmtree(self._folder, ignore_errors=True)
            raise SandboxError(f"a hosted process cannot be started: {error}") from error
        finally:
            listener.close()
        # The kernel's word, from before any candidate code ran there.
        peer = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self._pid: int = struct.unpack("3i", peer)[0]
        if self._pid <= 0:  # signals to process 0 would reach this process and all of its group
            self._connection.close()
            server.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise SandboxError("a hosted process is not visible from its host: process namespaces that are not nested")

    def load(self) -> None:
        """Has the module loaded, once its process can connect to nothing.

        Raises:
            Failed: See `ask`.
            SandboxError: It still can, though this machine filters system calls. (One that does not is told by `abilities`.)
        """
        # An answer to be believed: no candidate code has run there yet.
        if self.ask("confine").get("connections_refused") is not True and abilities()[FILTERED]:
            self.end()
            raise SandboxError("a hosted process could not be kept from connecting to services of this machine")
        self.ask("load")

    def ask(self, what: str, *, deadline_s: float | None = None, files: Sequence[int] = (), **data: Any) -> dict[str, Any]:
        """One request and its answer, which is data of a hostile process.

        Raises:
            Failed: The candidate failed, hung, ended, or answered nonsense; the process is of no more use.
        """
        ends = time.monotonic() + (self._deadline_s if deadline_s is None else deadline_s)
        try:
            self._connection.settimeout(max(0.01, ends - time.monotonic()))
            socket.send_fds(self._connection, [b"\x01"], list(files))
            send_message(self._connection, {"do": what, **data})
            answer = self._answer(ends)
        except TimeoutError as error:
            self.end()
            text = f"the call did not end within {self._deadline_s if deadline_s is None else deadline_s:g} s"
            raise _failed(Status.TIMEOUT, text, "deadline") from error
        except (OSError, EOFError) as error:
            self.end()
            raise _failed(Status.RUNTIME_ERROR, f"the module ended its process: {self._reason}", self._reason) from error
        except (ValueError, RecursionError) as error:
            self.end()
            raise _failed(Status.REJECTED, "the module's process answered what no honest one can", "answer") from error
        if "failure" in answer:
            raise Failed(_told(answer["failure"]))
        done = answer.get("done")
        if not isinstance(done, dict):
            raise _failed(Status.REJECTED, "the module's process answered what no honest one can", "answer")
        return done

    def freeze(self) -> None:
        """Stops all threads of the process, so that nothing is computed between requests."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets it go on."""
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        """Ends the process and all it started. Idempotent."""
        self._signal(signal.SIGKILL)
        self._connection.close()
        self._thread.join(END_S)
        if self._thread.is_alive():  # the server serves one call at a time, and cannot serve the next process
            self._server.close()
            self._thread.join(END_S)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _serve(self, server: ForkServer, request: dict[str, Any]) -> None:
        try:
            server.call("evo.evaluation.hosted_child:serve", request, deadline_s=MAX_LIFE_S, scratch=self._folder)
        except WorkerDied as error:
            self._reason = error.reason
        except SandboxError as error:  # nobody connects then, which its owner is told
            self._reason = str(error)

    def _signal(self, number: int) -> None:
        if not self._thread.is_alive():
            return  # its number may be another process's by now
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, number)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def _answer(self, ends: float) -> dict[str, Any]:
        size = int.from_bytes(self._receive(8, ends), "little")
        if size > MAX_REPLY_BYTES:
            raise ValueError(f"an answer of {size} bytes")
        answer = json.loads(self._receive(size, ends))
        if not isinstance(answer, dict):
            raise ValueError("an answer that is no object")
        return answer

    def _receive(self, size: int, ends: float) -> bytes:
        parts: list[bytes] = []
        while size > 0:
            left = ends - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._connection.settimeout(left)
            part = self._connection.recv(min(size, 1 << 20))
            if not part:
                raise EOFError("closed")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _told(failure: Any) -> Failure:
    try:
        return Failure.from_json(failure)
    except (TypeError, ValueError, KeyError) as error:
        raise _failed(Status.REJECTED, "the module's process answered what no honest one can", "answer") from error


def _failed(status: Status, message: str, signature: str) -> Failed:
    return Failed(Failure(status, Stage.GATE, message, f"{status.value}:hosted:{signature}"))
