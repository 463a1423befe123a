"""Functions that misbehave inside a sandbox, one way each."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any


def echo(request: dict[str, Any]) -> dict[str, Any]:
    return request


def environment(request: dict[str, Any]) -> dict[str, Any]:
    return dict(os.environ)


def hang(request: dict[str, Any]) -> dict[str, Any]:
    time.sleep(60)
    return {}


def exit_early(request: dict[str, Any]) -> dict[str, Any]:
    os._exit(0)


def crash(request: dict[str, Any]) -> dict[str, Any]:
    ctypes.string_at(0)
    return {}


def talk(request: dict[str, Any]) -> dict[str, Any]:
    return {"text": "x" * (4 << 20)}


def leave_a_process(request: dict[str, Any]) -> dict[str, Any]:
    if os.fork() == 0:
        _linger(request["comm"])
    time.sleep(request["for_s"])
    return {}


def leave_a_daemon(request: dict[str, Any]) -> dict[str, Any]:
    """One that left its process group and has no parent of ours any more."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            _linger(request["comm"])
        os._exit(0)
    time.sleep(request["for_s"])
    return {}


def _linger(name: str) -> None:
    ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)  # PR_SET_NAME: how the test finds it
    time.sleep(60)
    os._exit(0)


def allocate(request: dict[str, Any]) -> dict[str, Any]:
    try:
        bytearray(request["nbytes"])
    except MemoryError as error:
        return {"error": type(error).__name__}
    return {"error": ""}


def write_file(request: dict[str, Any]) -> dict[str, Any]:
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        Path("big").write_bytes(b"x" * request["nbytes"])
    except OSError as error:
        return {"error": type(error).__name__}
    return {"error": ""}


def interfaces(request: dict[str, Any]) -> dict[str, Any]:
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    return {"up": [line.split(":")[0].strip() for line in lines if line.split()[1] != "0"]}


def working_folder(request: dict[str, Any]) -> dict[str, Any]:
    return {"path": str(Path.cwd())}


def parent(request: dict[str, Any]) -> dict[str, Any]:
    """The fork server's process id."""
    return {"pid": os.getppid()}


def write_raw(request: dict[str, Any]) -> dict[str, Any]:
    """Writes a text of its own to the reply pipe, and ends."""
    for descriptor in range(3, 64):
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith("pipe:"):
                os.write(descriptor, b'{"outputs": ' + str(request["text"]).encode() + b"}")
        except OSError:
            pass  # not open, or not for writing
    os._exit(0)
