"""Small hostile actions, tried inside a real sandbox, and what stopped each: for `triton-evolve doctor` and the tests.

A probe is a function that runs in a sandboxed child, with bait of its caller's named in `Bait`. It raises `Stopped` (most simply through
`stopped_by`), or returns what it got away with. Another probe is another function with `@probe`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evo.errors import WorkerDied
from evo.tracing.kernel import CLONE_NEWUSER, libc, unshare
from evo.tracing.sandbox import ForkServer, Limits

LIMITS = Limits(
    memory_bytes=192 << 20, cpu_s=10, file_bytes=2 << 20, open_files=64, processes=32, max_reply_bytes=1 << 20, disk_bytes=8 << 20
)
"""Tight, so that going beyond them harms nobody where they do not bind."""

DEADLINE_S = 5.0
PTRACE_ATTACH = 16
LAYERS = {
    errno.EPERM: "seccomp or missing capability",
    errno.EACCES: "Landlock or file permissions",
    errno.ENOENT: "own root or /proc",
    errno.ESRCH: "process namespace",
    errno.ENETUNREACH: "network namespace",
    errno.ECONNREFUSED: "network namespace",
}
"""What an error usually comes from, where a probe does not know better."""


class Stopped(Exception):
    """A layer stopped the probe.

    Args:
        layer: Which.
        detail: What it answered.
    """

    def __init__(self, layer: str, detail: str) -> None:
        super().__init__(f"{layer}: {detail}")


@dataclass(frozen=True)
class Bait:
    """What the caller laid out.

    Attributes:
        secret: In the caller's environment and in its victim's.
        pid: Of the victim, a process of the caller's user.
        port: Of a TCP listener on the loopback device.
        abstract: Name of an abstract unix socket that listens.
        private_file: In the user's home (or, where that cannot be written, beside the store), readable by the user only.
        store: A file such as a population store.
    """

    secret: str
    pid: int
    port: int
    abstract: str
    private_file: str
    store: str


@dataclass(frozen=True)
class ProbeResult:
    """What a probe met.

    Attributes:
        name: What it tried.
        contained: It did not succeed.
        how: The layer that stopped it and what that answered, or what the probe got away with.
    """

    name: str
    contained: bool
    how: str


@dataclass(frozen=True)
class Probe:
    """See the module's docstring.

    Attributes:
        name: What is tried.
        action: Runs in the child.
        deaths: How the child may end without an answer, by reason, and the layer that is then at work.
        deadline_s: Of the call.
        shared: The child's working folder is seen by the caller, who looks afterwards whether anything in it still changes.
    """

    name: str
    action: Callable[[Bait], str]
    deaths: Mapping[str, str]
    deadline_s: float
    shared: bool


PROBES: dict[str, Probe] = {}


def probe(
    name: str, *, deaths: Mapping[str, str] | None = None, deadline_s: float = DEADLINE_S, shared: bool = False
) -> Callable[[Callable[[Bait], str]], Callable[[Bait], str]]:
    """Registers a probe; see `Probe`."""

    def register(action: Callable[[Bait], str]) -> Callable[[Bait], str]:
        PROBES[name] = Probe(name, action, dict(deaths or {}), deadline_s, shared)
        return action

    return register


@contextlib.contextmanager
def stopped_by(layers: Mapping[int, str] | None = None) -> Iterator[None]:
    """Turns an OSError within the block into `Stopped`; `layers` says which layer an error number means here."""
    try:
        yield
    except OSError as error:
        number = error.errno or 0
        raise Stopped({**LAYERS, **(layers or {})}.get(number, "kernel"), str(error.strerror)) from error


def run_probes(*, gpu: bool = False) -> tuple[ProbeResult, ...]:
    """Runs every probe in a sandbox of its own making, in a few seconds.

    Args:
        gpu: Try the sandbox of children with a GPU, which may do a little more.
    """
    with tempfile.TemporaryDirectory(prefix="triton-evolve-probe-") as folder, _bait(Path(folder)) as bait:
        server = ForkServer("probe", LIMITS, preload=(__name__,), gpu=gpu)
        try:
            return tuple(_result(server, one, bait, Path(folder)) for one in PROBES.values())
        finally:
            server.close()


def attempt(request: dict[str, Any]) -> dict[str, Any]:
    """Runs in the child: one probe by name."""
    try:
        return {"got": PROBES[request["name"]].action(Bait(**request["bait"]))}
    except Stopped as stopped:
        return {"stopped": str(stopped)}


def _result(server: ForkServer, one: Probe, bait: Bait, folder: Path) -> ProbeResult:
    scratch = Path(tempfile.mkdtemp(dir=folder)) if one.shared else None
    try:
        answer = server.call(
            f"{__name__}:attempt", {"name": one.name, "bait": asdict(bait)}, deadline_s=one.deadline_s, scratch=scratch
        )
    except WorkerDied as died:
        if died.reason not in one.deaths:
            return ProbeResult(one.name, False, f"the sandbox ended unexpectedly: {died.reason}")
        if scratch is not None and _changes(scratch):
            return ProbeResult(one.name, False, "a process went on after the sandbox's end")
        return ProbeResult(one.name, True, f"{one.deaths[died.reason]}: {died.reason}")
    if "stopped" in answer:
        return ProbeResult(one.name, True, str(answer["stopped"]))
    return ProbeResult(one.name, False, str(answer.get("got", "no answer")))


def _changes(folder: Path) -> bool:
    def sizes() -> list[int]:
        return [path.stat().st_size for path in sorted(folder.iterdir())]

    before = sizes()
    time.sleep(0.3)
    return sizes() != before


@contextlib.contextmanager
def _bait(folder: Path) -> Iterator[Bait]:
    secret = f"canary-{secrets.token_hex(8)}"
    store = folder / "population.sqlite"
    store.write_text(secret)
    home = Path.home() if os.access(Path.home(), os.W_OK) else folder
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0triton-evolve-{secret}")
        abstract.listen()
        private = stack.enter_context(tempfile.NamedTemporaryFile("w", dir=home, prefix=".triton-evolve-canary-"))
        private.write(secret)
        private.flush()
        os.environ["TRITON_EVOLVE_CANARY"] = secret
        stack.callback(os.environ.pop, "TRITON_EVOLVE_CANARY", None)
        victim = stack.enter_context(subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)", secret]))
        stack.callback(victim.kill)
        port = int(listener.getsockname()[1])
        yield Bait(secret, victim.pid, port, f"triton-evolve-{secret}", private.name, str(store))


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
