"""The processes behind `evo.tracing.sandbox.ForkServer`: a guard, which outlives and tidies up after the server, and the server itself.

The server imports once, then forks a confined child for every call.
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
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from evo.tracing import privileges
from evo.tracing.confinement import Limits, confine, found_sandbox, prepare
from evo.tracing.kernel import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, prctl
from evo.tracing.memory import descendants, total_bytes
from evo.tracing.namespaces import Namespaces, enter, fork_apart, own_proc
from evo.tracing.places import needed
from evo.tracing.sandbox import receive_message, send_message

WATCH_S = 0.1
"""Between two looks at what a call uses."""
MAX_PARTS = 4_000_000
"""Commas and brackets of an answer, those of its texts among them. Read, three bytes of JSON become an object of over sixty."""


@dataclass(frozen=True)
class Setting:
    """What is the same for all calls of a server."""

    limits: Limits
    home: Path
    gpu: bool
    namespaces: Namespaces
    tree: Path | None


def guard(connection: socket.socket, settings: dict[str, Any], *, ends_with_parent: bool = True) -> None:
    """Starts the server and waits. However the server or the caller goes, no process and no file of theirs is left then.

    Args:
        connection: To the caller.
        settings: See `ForkServer`.
        ends_with_parent: Also when the thread that started this process ends. Else it is the connection alone that tells.
    """
    server = 0

    def end(number: int, frame: FrameType | None) -> None:  # no exception, since it could come while we tidy up
        _end(server, settings["home"])

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's to handle
    if ends_with_parent:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # not SIGKILL, since a caller that was killed cannot tidy up
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    namespaces = enter()
    server = os.fork()
    if server == 0:
        try:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            serve(connection, settings, namespaces)
        finally:
            os._exit(0)
    poll = select.poll()
    poll.register(connection, 0)  # only whether the other side is gone
    poll.register(os.pidfd_open(server), select.POLLIN)
    poll.poll()
    _end(server, settings["home"])


def _end(server: int, home: str) -> None:
    if server:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(server, signal.SIGKILL)
            os.waitpid(server, 0)
    _end_strays()
    shutil.rmtree(home, ignore_errors=True)
    os._exit(0)


def serve(connection: socket.socket, settings: dict[str, Any], namespaces: Namespaces) -> None:
    """Answers calls until the caller goes away."""
    if namespaces.processes:
        namespaces = replace(namespaces, proc=own_proc())
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    for module in settings["preload"]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # children share these pages
    home, gpu = Path(settings["home"]), bool(settings["gpu"])
    setting = Setting(Limits(**settings["limits"]), home, gpu, namespaces, prepare(home, namespaces, gpu=gpu))
    os.environ.pop("TRITON_EVOLVE_HOME", None)  # told by now what is private, and no candidate's business
    changes = {keep: os.geteuid() == 0 and privileges.can_change_user(may_read_all=keep) for keep in (False, True)}
    send_message(connection, {"ready": True})
    while True:
        try:
            message = receive_message(connection)
        except EOFError:
            return
        reply = Call(message, setting, changes).run(connection)
        try:
            send_message(connection, reply)
        except RecursionError:  # before anything is sent; nested just deep enough to be read but not written
            send_message(connection, {"died": "malformed answer"})


class Call:
    """One call: its child, and what the server does about it.

    Args:
        message: From the caller.
        setting: Of the server.
        changes: Whether a child can become a user of its own, without and with the right to read what is private.
    """

    def __init__(self, message: dict[str, Any], setting: Setting, changes: dict[bool, bool]) -> None:
        self._message = message
        self._setting = setting
        self._limits = setting.limits
        self._private = message["scratch"] is None
        self._scratch = Path(message["scratch"] or tempfile.mkdtemp(prefix="call-", dir=setting.home))
        self._may_read_all = os.geteuid() == 0 and not privileges.others_can_reach((*needed(), self._scratch.parent))
        self._owner = privileges.NOBODY if changes[self._may_read_all] else os.geteuid()
        self._deadline = time.monotonic() + float(message["deadline_s"])

    def run(self, connection: socket.socket) -> dict[str, Any]:
        """Forks the child, reads its answer and ends all that it started.

        Returns:
            ``payload`` or ``died``.
        """
        if self._owner != os.geteuid():
            os.chown(self._scratch, self._owner, self._owner)
        reader, writer = os.pipe()
        place = self._place()
        pid, first = fork_apart()
        if pid == 0:
            os.setpgid(0, 0)
            os.close(reader)
            connection.close()
            self._child(writer, bool(first))
        with contextlib.suppress(
            OSError
        ):  # both sides set the group, so that neither is early; what the child starts dies with it
            os.setpgid(pid, pid)
        os.close(writer)
        try:
            data, reason = self._collect(pid, reader)
        finally:
            os.close(reader)
            os.killpg(first or pid, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if first:
                os.waitpid(first, 0)  # which ends after all others of its namespace
            else:
                _end_strays()
            if self._private:
                shutil.rmtree(self._scratch, ignore_errors=True)
            if place is not None:
                place.rmdir()
        if reason is not None:
            return {"died": reason}
        if sum(map(data.count, (b",", b"[", b"{"))) > MAX_PARTS:
            return {"died": "output too large"}
        try:
            return {"payload": json.loads(data)}
        except RecursionError:
            return {"died": "malformed answer"}
        except ValueError:
            return {"died": f"signal {-status}" if status < 0 else f"exit {status}"}

    def _place(self) -> Path | None:
        """The working folder's place in the tree that is to be the child's root."""
        if self._setting.tree is None:
            return None
        place = self._setting.tree / str(self._scratch).lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        return place

    def _collect(self, pid: int, reader: int) -> tuple[bytes, str | None]:
        """Reads until the child ends: a process that it left behind may hold the pipe open for ever."""
        parts: list[bytes] = []
        size = 0
        ended = os.pidfd_open(pid)
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        poll.register(ended, select.POLLIN)
        look = time.monotonic() + WATCH_S
        try:
            while True:
                now = time.monotonic()
                if now >= self._deadline:
                    return b"", "deadline"
                if now >= look:
                    if (excess := self._excess()) is not None:
                        return b"", excess
                    look = time.monotonic() + WATCH_S
                ready = dict(poll.poll(max(0.0, min(self._deadline - now, WATCH_S)) * 1000))
                if not ready:
                    continue
                part = os.read(reader, 1 << 20) if reader in ready else b""
                if not part:
                    return b"".join(parts), None
                parts.append(part)
                size += len(part)
                if size > self._limits.max_reply_bytes:
                    return b"", "output too large"
        finally:
            os.close(ended)

    def _excess(self) -> str | None:
        """What the child and all that it started use too much of together."""
        processes = descendants(self._limits.processes)
        if len(processes) > self._limits.processes + 1:  # the first of its namespace does not count
            return "processes"
        return "memory" if total_bytes(processes, self._limits.memory_bytes) > self._limits.memory_bytes else None

    def _child(self, writer: int, apart: bool) -> None:
        code = 1
        try:
            module, _, name = self._message["function"].partition(":")
            function = getattr(importlib.import_module(module), name)  # ours, and perhaps where a confined process may not read
            self._confine(apart)
            data = json.dumps(function(self._message["request"])).encode()
            while data:
                data = data[os.write(writer, data) :]
            code = 0
        except Exception:  # noqa: BLE001
            traceback.print_exc()  # ours to mend: seen where the server's stderr is kept
        finally:
            os._exit(code)

    def _confine(self, apart: bool) -> None:
        scratch, namespaces, tree = self._scratch, self._setting.namespaces, self._setting.tree
        proc = apart and found_sandbox(
            scratch, in_memory_bytes=self._limits.disk_bytes if self._private else 0, owner=self._owner, tree=tree
        )
        os.chdir(scratch)
        os.environ.update(HOME=str(scratch), TMPDIR=str(scratch), TRITON_CACHE_DIR=str(scratch / "triton"))
        tempfile.tempdir = None
        confine(
            self._limits,
            replace(namespaces, processes=apart, proc=proc),
            gpu=self._setting.gpu,
            readable=(),
            writable=(str(scratch),),
            may_read_all=self._may_read_all,
            own_root=tree is not None and proc,
        )


def _end_strays() -> None:
    """Ends what a child left outside of its process group: orphans become children of this process (a subreaper), which has no others
    between two calls. Ending one may orphan more, hence the loop."""
    children = Path("/proc/thread-self/children")
    while strays := children.read_text().split() if children.exists() else []:
        for stray in map(int, strays):
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(stray, signal.SIGKILL)
                os.waitpid(stray, 0)


if __name__ == "__main__":
    guard(
        socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2]), ends_with_parent=False
    )  # threads of a caller come and go
