"""Puts a process that will run untrusted code under every layer this machine offers, and tells which ones those are."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from evo.tracing import landlock, privileges, roots, seccomp
from evo.tracing.kernel import PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG, prctl
from evo.tracing.namespaces import Namespaces, bound_folder, enter, own_proc
from evo.tracing.places import granted, needed

FILTERED = "system calls filtered by seccomp"
"""Of `abilities`: both filters, that of every sandbox and that which keeps hosted code from connecting sockets."""

COUNTS_BY_NAMESPACE = (5, 14)
"""Since this Linux, a user's processes are counted in each user namespace on their own."""


@dataclass(frozen=True)
class Limits:
    """What one child may use.

    Attributes:
        memory_bytes: Address space of each of its processes beyond what the server already maps (not with a GPU: CUDA reserves far more
            than it uses), and memory of all of them together.
        cpu_s: CPU seconds of each process.
        file_bytes: Largest file it may write.
        open_files, processes: Counts; `processes` applies where they are counted for this child alone, or it has a user of its own.
        max_reply_bytes: Longest answer.
        disk_bytes: All files in a private working folder together, where one can be made in memory.
    """

    memory_bytes: int = 8 << 30
    cpu_s: int = 120
    file_bytes: int = 512 << 20
    open_files: int = 256
    processes: int = 512
    max_reply_bytes: int = 64 << 20
    disk_bytes: int = 1 << 30


@dataclass(frozen=True)
class Layers:
    """What was applied to a process."""

    namespaces: Namespaces
    own_user: bool
    counted: bool
    landlock: int
    own_root: bool
    seccomp: bool


def apply_limits(limits: Limits, *, gpu: bool = False, readable: Sequence[str] = (), writable: Sequence[str] = ()) -> Layers:
    """Called in a fresh forked process before anything untrusted runs; irreversible. What the kernel refuses is left out.

    Children of a `ForkServer` have this behind them, and namespaces of processes and mounts besides. Threads must not run yet.

    Args:
        limits: What the process may use.
        gpu: Whether it may use the devices of NVIDIA's driver.
        readable, writable: Files and folders besides the interpreter, its packages and the system's libraries. Where the process becomes
            another user, writable ones become that user's, if they are ours.
    """
    may_read_all = not privileges.others_can_reach((*needed(), *readable, *writable))
    changes = os.geteuid() == 0 and privileges.can_change_user(may_read_all=may_read_all)
    if changes:
        for place in writable:
            if os.stat(place).st_uid == os.geteuid():
                os.chown(place, privileges.NOBODY, privileges.NOBODY)
    return confine(limits, enter(processes=False), gpu=gpu, readable=readable, writable=writable, may_read_all=may_read_all)


def confine(
    limits: Limits,
    namespaces: Namespaces,
    *,
    gpu: bool,
    readable: Sequence[str],
    writable: Sequence[str],
    may_read_all: bool,
    own_root: bool = False,
) -> Layers:
    """Applies all layers but namespaces, in the order in which each still lets the next one be applied.

    Args:
        limits, gpu, readable, writable: See `apply_limits`.
        namespaces: Those this process is in already.
        may_read_all: See `evo.tracing.privileges.drop`.
        own_root: Whether it is in a root of its own already.
    """
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    _set_limits(limits, gpu=gpu)
    rules = landlock.prepare(granted(gpu=gpu, readable=readable, writable=writable, own_proc=namespaces.proc))
    own_user = privileges.drop(may_read_all=may_read_all)
    prctl(PR_SET_DUMPABLE, 1)  # which a change of user clears, and then not even the server may see how much memory it uses
    counted = own_user or (namespaces.user and _kernel() >= COUNTS_BY_NAMESPACE)
    if counted:
        _limit(resource.RLIMIT_NPROC, limits.processes)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # after the change of user, which clears it
    if rules is not None:
        landlock.restrict(rules)
    return Layers(namespaces, own_user, counted, landlock.version(), own_root, seccomp.install(gpu=gpu))


def prepare(home: Path, namespaces: Namespaces, *, gpu: bool) -> Path | None:
    """Called in a server before it forks: works out once what `confine` needs in every child.

    Args:
        home: A folder of the server's own.

    Returns:
        A tree to become the root of children, where there is no Landlock but there are mounts of one's own.
    """
    grants = granted(gpu=gpu, readable=(), writable=(), own_proc=namespaces.proc)
    if seccomp.offered():
        seccomp.program(os.uname().machine, gpu=gpu)
    if landlock.version() or not namespaces.proc:
        return None
    tree = home / "root"
    tree.mkdir()
    return tree if roots.build(tree, grants) and roots.can_enter(tree) else None


def found_sandbox(scratch: Path, *, in_memory_bytes: int, owner: int, tree: Path | None) -> bool:
    """Called in a process with a process namespace of its own, before `confine`: its own mounts, /proc, working folder and root.

    Args:
        scratch: The working folder.
        in_memory_bytes: Unless 0, it is empty and shall be one in memory of this size.
        owner: Of the folder.
        tree: From `prepare`; with the working folder's place in it, which is there already.

    Returns:
        Whether /proc is its own.
    """
    if not own_proc():
        return False
    place = scratch if tree is None else tree / str(scratch).lstrip("/")
    bounded = bool(in_memory_bytes) and bound_folder(place, in_memory_bytes, owner)
    if tree is not None:
        if not bounded:
            roots.bind(tree, str(scratch), writable=True)
        roots.enter(tree)
    return True


def abilities() -> dict[str, bool]:
    """What this machine lets a sandbox do, measured in a forked process (for `triton-evolve doctor`)."""
    layers = _measured()
    return {
        "no new privileges": layers is not None,
        "own user namespace": layers is not None and layers.namespaces.user,
        "own network namespace": layers is not None and layers.namespaces.network,
        "own process namespace": layers is not None and layers.namespaces.processes,
        "own /proc": layers is not None and layers.namespaces.proc,
        "user of its own": layers is not None and layers.own_user,
        "number of processes limited": layers is not None and layers.counted,
        "files limited by Landlock or a root of its own": layers is not None and (bool(layers.landlock) or layers.own_root),
        "TCP refused by Landlock": layers is not None and layers.landlock >= landlock.TCP_SINCE,
        "signals and abstract sockets limited by Landlock": layers is not None and layers.landlock >= landlock.SCOPES_SINCE,
        FILTERED: layers is not None and layers.seccomp,
    }


def _measured() -> Layers | None:
    """The layers of a child like a fork server's."""
    reader, writer = os.pipe()
    with tempfile.TemporaryDirectory(prefix="triton-evolve-") as folder:
        pid = os.fork()
        if pid == 0:
            try:
                os.close(reader)
                namespaces = enter()
                child = os.fork()
                if child == 0:
                    os.write(writer, json.dumps(asdict(_applied(namespaces, Path(folder)))).encode())
                else:
                    os.waitpid(child, 0)
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as answer:
            text = answer.read()
        os.waitpid(pid, 0)
    if not text:
        return None
    fields = json.loads(text)
    return Layers(**{**fields, "namespaces": Namespaces(**fields["namespaces"])})


def _applied(namespaces: Namespaces, folder: Path) -> Layers:
    if namespaces.processes:
        namespaces = replace(namespaces, proc=own_proc())
    may_read_all = not privileges.others_can_reach(needed())
    tree = prepare(folder, namespaces, gpu=False)
    if tree is not None:
        roots.enter(tree)
    layers = confine(
        Limits(), namespaces, gpu=False, readable=(), writable=(), may_read_all=may_read_all, own_root=tree is not None
    )
    return replace(layers, seccomp=layers.seccomp and seccomp.refuse_connections())


def _set_limits(limits: Limits, *, gpu: bool) -> None:
    if not gpu:
        _limit(resource.RLIMIT_AS, _mapped_bytes() + limits.memory_bytes)
    _limit(resource.RLIMIT_CPU, limits.cpu_s)
    _limit(resource.RLIMIT_FSIZE, limits.file_bytes)
    _limit(resource.RLIMIT_NOFILE, limits.open_files)
    _limit(resource.RLIMIT_CORE, 0)


def _limit(which: int, value: int) -> None:
    hard = resource.getrlimit(which)[1]
    with contextlib.suppress(ValueError, OSError):  # a lower hard limit is already in force
        resource.setrlimit(which, (value, value) if hard == resource.RLIM_INFINITY or value <= hard else (hard, hard))


def _mapped_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(digit for digit in minor if digit.isdigit()) or 0)
