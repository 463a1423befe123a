"""The process behind `evo.tracing.sandbox.ForkServer`: imports once, then forks a limited child for every call."""

from __future__ import annotations

import contextlib
import ctypes
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
from pathlib import Path
from typing import Any

from evo.tracing.sandbox import NOBODY, PR_SET_PDEATHSIG, Limits, apply_limits, receive_message, send_message

PR_SET_CHILD_SUBREAPER = 36


def serve(connection: socket.socket, settings: dict[str, Any]) -> None:
    """Answers calls until the caller goes away; then, however it went, no child and no file of the server's is left."""

    def end(number: int, frame: object) -> None:
        # Not SIGKILL, since a caller that was killed cannot tidy up; and no exception, since it could come while we tidy up ourselves.
        _end_strays()
        shutil.rmtree(settings["home"], ignore_errors=True)
        os._exit(0)

    libc = ctypes.CDLL(None)
    signal.signal(signal.SIGTERM, end)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        _serve(connection, settings)
    finally:
        shutil.rmtree(settings["home"], ignore_errors=True)


def _serve(connection: socket.socket, settings: dict[str, Any]) -> None:
    limits = Limits(**settings["limits"])
    for module in settings["preload"]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # children share these pages
    send_message(connection, {"ready": True})
    while True:
        try:
            message = receive_message(connection)
        except EOFError:
            return
        reply = _call(message, limits, settings, connection)
        try:
            send_message(connection, reply)
        except RecursionError:  # before anything is sent; nested just deep enough to be read but not written
            send_message(connection, {"died": "malformed answer"})


def _call(message: dict[str, Any], limits: Limits, settings: dict[str, Any], connection: socket.socket) -> dict[str, Any]:
    scratch = Path(message["scratch"] or tempfile.mkdtemp(prefix="call-", dir=settings["home"]))
    if os.geteuid() == 0:
        os.chown(scratch, NOBODY, NOBODY)
    reader, writer = os.pipe()
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setpgid(0, 0)
        os.close(reader)
        connection.close()
        _child(message, limits, scratch, writer, gpu=settings["gpu"])
    with contextlib.suppress(OSError):  # both sides set the group, so that neither is early; what the child starts dies with it
        os.setpgid(pid, pid)
    os.close(writer)
    try:
        data, reason = _collect(pid, reader, started + float(message["deadline_s"]), limits.max_reply_bytes)
    finally:
        os.close(reader)
        os.killpg(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        _end_strays()
        if message["scratch"] is None:
            shutil.rmtree(scratch, ignore_errors=True)
    if reason is not None:
        return {"died": reason}
    try:
        return {"payload": json.loads(data)}
    except RecursionError:
        return {"died": "malformed answer"}
    except ValueError:
        return {"died": f"signal {-status}" if status < 0 else f"exit {status}"}


def _end_strays() -> None:
    """Ends what a child left outside of its process group: orphans become children of this process (a subreaper), which has no others
    between two calls. Ending one may orphan more, hence the loop."""
    me = os.getpid()
    children = Path(f"/proc/{me}/task/{me}/children")
    while strays := children.read_text().split() if children.exists() else []:
        for stray in map(int, strays):
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(stray, signal.SIGKILL)
                os.waitpid(stray, 0)


def _collect(pid: int, reader: int, deadline: float, limit: int) -> tuple[bytes, str | None]:
    """Reads until the child ends: a process that it left behind may hold the pipe open for ever."""
    parts: list[bytes] = []
    size = 0
    ended = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    poll.register(ended, select.POLLIN)
    try:
        while True:
            left = deadline - time.monotonic()
            ready = dict(poll.poll(left * 1000)) if left > 0 else {}
            if not ready:
                return b"", "deadline"
            part = os.read(reader, 1 << 20) if reader in ready else b""
            if not part:
                return b"".join(parts), None
            parts.append(part)
            size += len(part)
            if size > limit:
                return b"", "output too large"
    finally:
        os.close(ended)


def _child(message: dict[str, Any], limits: Limits, scratch: Path, writer: int, *, gpu: bool) -> None:
    code = 1
    try:
        os.chdir(scratch)
        os.environ.update(HOME=str(scratch), TMPDIR=str(scratch), TRITON_CACHE_DIR=str(scratch / "triton"))
        tempfile.tempdir = None
        apply_limits(limits, gpu=gpu, writable=(str(scratch),))
        module, _, name = message["function"].partition(":")
        answer = getattr(importlib.import_module(module), name)(message["request"])
        data = json.dumps(answer).encode()
        while data:
            data = data[os.write(writer, data) :]
        code = 0
    except Exception:  # noqa: BLE001
        traceback.print_exc()  # ours to mend: seen where the server's stderr is kept
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2]))
