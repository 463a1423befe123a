"""The probes: each runs in a sandboxed child, raises `Stopped` (most simply through `stopped_by`), or returns what it got away with."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import socket
import time
from pathlib import Path

from evo.tracing.kernel import CLONE_NEWUSER, libc, unshare
from evo.tracing.probe_registry import LIMITS, Bait, Stopped, probe, stopped_by

PTRACE_ATTACH = 16


@probe("reads a secret from its own environment")
def _own_environment(bait: Bait) -> str:
    if bait.secret in "".join(os.environ.values()) + Path("/proc/self/environ").read_bytes().decode(errors="replace"):
        return "the caller's secret was inherited"
    raise Stopped("fresh environment", "no secret in it")


@probe("reads a secret from other processes' environments")
def _other_environments(bait: Bait) -> str:
    seen = 0
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            seen += 1
            if bait.secret in path.read_bytes().decode(errors="replace"):
                return f"read {path}"
    raise Stopped("own /proc" if seen < 4 else "Landlock or user of its own", f"{seen} processes seen, none with the secret")


@probe("sees other processes")
def _sees_processes(bait: Bait) -> str:
    with contextlib.suppress(OSError):
        if bait.secret in Path(f"/proc/{bait.pid}/cmdline").read_bytes().decode(errors="replace"):
            return f"read the command line of process {bait.pid}"
    raise Stopped("own /proc or Landlock", "the caller's process is not in it")


@probe("signals a process of the caller")
def _signals(bait: Bait) -> str:
    with stopped_by({errno.EPERM: "Landlock or user of its own"}):
        os.kill(bait.pid, signal.SIGWINCH)  # which is ignored; SIGCONT may be sent to anybody in the same session
    return "sent a signal"


@probe("traces a process of the caller")
def _traces(bait: Bait) -> str:
    with stopped_by({errno.EPERM: "seccomp"}):
        libc("ptrace", PTRACE_ATTACH, bait.pid, 0, 0)
    return "attached to it"


@probe("opens the memory of a process of the caller")
def _opens_memory(bait: Bait) -> str:
    with stopped_by(), open(f"/proc/{bait.pid}/mem", "rb"):
        return "opened it"


@probe("connects to the caller by TCP")
def _connects(bait: Bait) -> str:
    with stopped_by({errno.EPERM: "seccomp"}), socket.create_connection(("127.0.0.1", bait.port), timeout=1):
        return "connected"


@probe("connects to an abstract unix socket")
def _connects_abstract(bait: Bait) -> str:
    with stopped_by(), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"\0{bait.abstract}")
    return "connected"


@probe("reads a private file in the user's home")
def _reads_home(bait: Bait) -> str:
    with stopped_by():
        return f"read {len(Path(bait.private_file).read_text())} characters"


@probe("reads the store")
def _reads_store(bait: Bait) -> str:
    with stopped_by():
        return f"read {len(Path(bait.store).read_text())} characters"


@probe("writes into the store")
def _writes_store(bait: Bait) -> str:
    with stopped_by(), open(bait.store, "a") as store:
        return f"wrote {store.write('x')} character"


@probe("writes a file beside the store")
def _writes_beside(bait: Bait) -> str:
    with stopped_by():
        Path(bait.store).with_name("beside").write_text("x")
    return "wrote a file"


@probe("changes this program's code")
def _changes_code(bait: Bait) -> str:
    with stopped_by({errno.EROFS: "own root, read-only"}), open(__file__, "a"):
        return "opened a module for writing"


@probe("reads what only root may read")
def _reads_shadow(bait: Bait) -> str:
    with stopped_by():
        return f"read {len(Path('/etc/shadow').read_text())} characters of /etc/shadow"


@probe("becomes root")
def _becomes_root(bait: Bait) -> str:
    if os.geteuid() == 0:
        with stopped_by():
            Path("/proc/sys/kernel/hostname").open("a").close()
        return "is root, and may change settings of the machine"
    with stopped_by({errno.EPERM: "user of its own without capabilities", errno.EINVAL: "user namespace"}):
        os.setuid(0)
    return "is root"


@probe("gains capabilities in a new user namespace")
def _gains_capabilities(bait: Bait) -> str:
    with stopped_by({errno.EPERM: "seccomp"}):
        unshare(CLONE_NEWUSER)
    return "has all capabilities in it"


@probe("mounts a file system")
def _mounts(bait: Bait) -> str:
    Path("mounted").mkdir()
    with stopped_by({errno.EPERM: "seccomp"}):
        libc("mount", b"none", b"mounted", b"tmpfs", 0, None)
    return "mounted one"


@probe("leaves shared memory behind for the next call")
def _leaves_memory(bait: Bait) -> str:
    with stopped_by({errno.EPERM: "seccomp"}):
        libc("shmget", 0x7E57, 4096, 0o1600)
    return "left a System V segment"


@probe("starts more processes than allowed", deaths={"processes": "count of processes", "memory": "sum of memory"})
def _forks(bait: Bait) -> str:
    started = 0
    for _ in range(4 * LIMITS.processes):
        try:
            pid = os.fork()
        except OSError as error:
            raise Stopped("limit of processes", f"{started} processes, then {error.strerror}") from error
        if pid == 0:
            time.sleep(2)
            os._exit(0)
        started += 1
    time.sleep(0.5)
    return f"started {started} processes, {LIMITS.processes} are allowed"


@probe("allocates more memory than allowed", deaths={"memory": "sum of memory"})
def _allocates(bait: Bait) -> str:
    try:
        held = b"x" * (2 * LIMITS.memory_bytes)
    except MemoryError as error:
        raise Stopped("limit of address space", "MemoryError") from error
    time.sleep(0.5)
    return f"allocated {len(held)} bytes"


@probe("allocates more memory than allowed in several processes", deaths={"memory": "sum of memory"})
def _allocates_together(bait: Bait) -> str:
    for _ in range(3):
        if os.fork() == 0:
            held = b"x" * (LIMITS.memory_bytes // 2)
            time.sleep(2)
            os._exit(len(held) & 1)
    time.sleep(1.5)
    return f"three processes hold {3 * LIMITS.memory_bytes // 2} bytes, {LIMITS.memory_bytes} are allowed"


@probe("writes a larger file than allowed")
def _writes_large(bait: Bait) -> str:
    with stopped_by({errno.EFBIG: "limit of file size", errno.ENOSPC: "bounded working folder"}), open("large", "wb") as file:
        return f"wrote {file.write(b'x' * (LIMITS.file_bytes + 1))} bytes"


@probe("fills the disk with many files")
def _fills_disk(bait: Bait) -> str:
    written = 0
    with stopped_by({errno.ENOSPC: "bounded working folder"}):
        for number in range(2 * LIMITS.disk_bytes >> 20):
            written += Path(f"part-{number}").write_bytes(b"x" * (1 << 20))
    return f"wrote {written} bytes, {LIMITS.disk_bytes} are allowed"


@probe("answers more than allowed", deaths={"output too large": "limit of answers"})
def _answers_much(bait: Bait) -> str:
    return "x" * (2 * LIMITS.max_reply_bytes)


@probe(
    "outlives its deadline as a daemon",
    deaths={"deadline": "deadline and process namespace or subreaper"},
    deadline_s=0.5,
    shared=True,
)
def _outlives(bait: Bait) -> str:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for _ in range(100):
                with open("alive", "a") as file:
                    file.write("x")
                time.sleep(0.05)
        os._exit(0)
    time.sleep(10)
    return "was not ended"


@probe("reads the memory of its server")
def _reads_server(bait: Bait) -> str:
    buffer = ctypes.create_string_buffer(8)
    local = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
    with stopped_by({errno.EPERM: "seccomp", errno.ESRCH: "process namespace"}):
        libc("process_vm_readv", os.getppid() or bait.pid, local, 1, local, 1, 0)
    return "read the memory of its server"
