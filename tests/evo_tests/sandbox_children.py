"""Functions that misbehave inside a sandbox, one way each."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import time
from pathlib import Path
from typing import Any


def echo(request: dict[str, Any]) -> dict[str, Any]:
    return request


def environment(request: dict[str, Any]) -> dict[str, Any]:
    return dict(os.environ)


def hang(request: dict[str, Any]) -> dict[str, Any]:
    time.sleep(600)
    return {}


def exit_early(request: dict[str, Any]) -> dict[str, Any]:
    os._exit(0)


def crash(request: dict[str, Any]) -> dict[str, Any]:
    ctypes.string_at(0)
    return {}


def answer_in_many_parts(request: dict[str, Any]) -> dict[str, Any]:
    return {"parts": [[]] * 5_000_000}


def talk(request: dict[str, Any]) -> dict[str, Any]:
    return {"text": "x" * (4 << 20)}


def leave_a_process(request: dict[str, Any]) -> dict[str, Any]:
    """Answers once somebody has sent the process SIGUSR1."""
    seen = mmap.mmap(-1, 1)
    if os.fork() == 0:
        _linger(request["comm"], seen)
    while not seen[0]:
        time.sleep(0.01)
    return {}


def leave_a_daemon(request: dict[str, Any]) -> dict[str, Any]:
    """One that left its process group and has no parent of ours any more."""
    seen = mmap.mmap(-1, 1)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            _linger(request["comm"], seen)
        os._exit(0)
    while not seen[0]:
        time.sleep(0.01)
    return {}


def _linger(name: str, seen: mmap.mmap) -> None:
    signal.signal(signal.SIGUSR1, lambda number, frame: seen.write_byte(1))
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


def identity(request: dict[str, Any]) -> dict[str, Any]:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    names = ("CapInh", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs", "Seccomp")
    return {"uid": os.getuid(), "groups": os.getgroups(), **{name: int(status[name], 16) for name in names}}


def run_program(request: dict[str, Any]) -> dict[str, Any]:
    """Another interpreter, which imports a package of ours and is as confined."""
    import subprocess
    import sys

    code = "import evo.records, os; print(os.getuid()); open('/etc/shadow')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return {"out": done.stdout, "error": done.stderr}


def opens(request: dict[str, Any]) -> dict[str, Any]:
    """By path and mode: the error's name, or an empty text."""
    found = {}
    for path, mode in request["files"]:
        try:
            if mode == "list":
                os.listdir(path)
            else:
                open(path, mode).close()
            found[path] = ""
        except OSError as error:
            found[path] = type(error).__name__
    return found


def works_with_files(request: dict[str, Any]) -> dict[str, Any]:
    """What compilers and caches do in their folder."""
    Path("one").mkdir()
    Path("two").mkdir()
    Path("one/file").write_text("text")
    os.replace("one/file", "two/file")
    os.symlink("two/file", "link")
    text = Path("link").read_text()
    os.truncate("two/file", 1)
    os.unlink("link")
    os.unlink("two/file")
    os.rmdir("two")
    Path("/dev/null").write_text("x")
    return {"text": text, "random": len(os.urandom(4)), "left": os.listdir()}


def bomb(request: dict[str, Any]) -> dict[str, Any]:
    """A fork bomb."""
    while True:
        try:
            os.fork()
        except OSError:
            time.sleep(0.01)


def grow(request: dict[str, Any]) -> dict[str, Any]:
    """Several processes that each stay within the limit of one."""
    for _ in range(request["processes"]):
        if os.fork() == 0:
            held = b"x" * request["nbytes"]
            time.sleep(30)
            os._exit(len(held) & 1)
    time.sleep(30)
    return {}


def system_calls(request: dict[str, Any]) -> dict[str, Any]:
    """By number: errno, or 0. Arguments are zeros, with which none of the calls asked for does anything."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = {}
    for number in request["numbers"]:
        zeros = [ctypes.c_long(0)] * 6
        found[str(number)] = ctypes.get_errno() if libc.syscall(ctypes.c_long(number), *zeros) < 0 else 0
    return found


def sockets(request: dict[str, Any]) -> dict[str, Any]:
    import socket

    found = {}
    families = {
        "tcp": (socket.AF_INET, socket.SOCK_STREAM),
        "udp": (socket.AF_INET6, socket.SOCK_DGRAM),
        "netlink": (socket.AF_NETLINK, socket.SOCK_RAW),
        "unix": (socket.AF_UNIX, socket.SOCK_STREAM),
    }
    for name, (family, kind) in families.items():
        try:
            socket.socket(family, kind).close()
            found[name] = ""
        except OSError as error:
            found[name] = type(error).__name__
    socket.socketpair()
    return found


def threads_and_tools(request: dict[str, Any]) -> dict[str, Any]:
    import subprocess
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as threads:
        doubled = list(threads.map(lambda item: 2 * item, range(8)))
    Path("a.c").write_text("int twice(int x) { return 2 * x; }")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", "a.so", "a.c"], check=True)
    return {"doubled": doubled, "four": ctypes.CDLL("./a.so").twice(2)}


def spin(request: dict[str, Any]) -> dict[str, Any]:
    while True:
        pass


def resources(request: dict[str, Any]) -> dict[str, Any]:
    import resource

    names = ("RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_CORE", "RLIMIT_NPROC")
    return {name: resource.getrlimit(getattr(resource, name)) for name in names}


def writable_mounts(request: dict[str, Any]) -> dict[str, Any]:
    """Folders that something is mounted on and not read-only."""
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return {"folders": [line[4] for line in lines if "rw" in line[5].split(",") and os.path.isdir(line[4])], "own": os.getcwd()}
