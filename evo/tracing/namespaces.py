"""Namespaces of a fork server and of its children: what they cannot see, they can neither signal nor read.

The server gets a user, network, IPC and process namespace once; every call gets a process namespace, a fresh /proc and, where it
brings no folder of its own, a working folder in memory of bounded size. The user namespace has no effect on who owns what (ids are
mapped to themselves), but makes the other namespaces possible without root, keeps the capabilities of root away from the rest of
the machine, and counts the processes of its users on its own.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from evo.tracing.kernel import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    libc,
    mount,
    unshare,
)

_WHOLE = CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWPID
_TRIES = (
    CLONE_NEWUSER | _WHOLE,
    _WHOLE,
    CLONE_NEWUSER | CLONE_NEWPID,
    CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWIPC,
    CLONE_NEWNET | CLONE_NEWIPC,
)
"""From the best to the least; containers and hardened kernels refuse some."""


_SLEEPER = shutil.which("sleep")


@dataclass(frozen=True)
class Namespaces:
    """What a process has of its own.

    Attributes:
        user, network, processes: Namespaces of these kinds.
        proc: A /proc that shows its process namespace only.
    """

    user: bool = False
    network: bool = False
    processes: bool = False
    proc: bool = False


def enter(*, processes: bool = True) -> Namespaces:
    """Moves this process, which must have one thread, to the best namespaces that it may have; its next child founds the one of processes.

    Args:
        processes: Whether the next child shall have a process namespace.
    """
    for flags in _TRIES:
        if not processes and flags & CLONE_NEWPID:
            flags &= ~CLONE_NEWPID
        if _rehearse(flags):
            _enter(flags)
            return Namespaces(
                user=bool(flags & CLONE_NEWUSER), network=bool(flags & CLONE_NEWNET), processes=bool(flags & CLONE_NEWPID)
            )
    return Namespaces()


def own_proc() -> bool:
    """Gives this process its own mounts, and a /proc that shows its process namespace only; tells whether it could."""
    try:
        unshare(CLONE_NEWNS)
        mount("none", "/", "none", MS_REC | MS_PRIVATE)
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    except OSError:
        return False
    return True


def bound_folder(folder: Path, nbytes: int, owner: int) -> bool:
    """Makes an empty folder one in memory, of bounded size, that ends with this process' mounts; tells whether it could."""
    options = f"size={nbytes},nr_inodes=16384,mode=700,uid={owner},gid={owner if owner != os.geteuid() else os.getegid()}"
    try:
        mount("tmpfs", str(folder), "tmpfs", MS_NOSUID | MS_NODEV, options)
    except OSError:
        return False
    return True


def fork_apart() -> tuple[int, int]:
    """Forks a child into a process namespace of its own, where it may: once the namespace's first process is killed, all in it are dead.

    The first process is a program that sleeps, not the child, since the kernel spares a first process signals that would end others.

    Returns:
        What os.fork returns, and the process id of the first process, or 0 where there is no namespace.
    """
    home = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    pid = -1
    try:
        if _SLEEPER is None:
            raise FileNotFoundError("sleep")
        unshare(CLONE_NEWPID)
    except OSError:
        os.close(home)
        return os.fork(), 0
    try:
        first = os.posix_spawn(_SLEEPER, ("sleep", "1000000000"), {}, setpgroup=0)
        pid = os.fork()
    finally:
        if pid != 0:
            libc("setns", home, 0)  # for the children after this one
        os.close(home)
    return pid, first


def _rehearse(flags: int) -> bool:
    """Whether `_enter` would succeed: where it fails midway, a process is left with an identity that owns nothing."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _enter(flags)
            child = os.fork()
            if child == 0:
                os._exit(0)
            code = 0 if os.waitpid(child, 0)[1] == 0 else 1
        except OSError:
            code = 1
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def _enter(flags: int) -> None:
    if flags & CLONE_NEWUSER:
        _enter_user_namespace()
        flags &= ~CLONE_NEWUSER
    unshare(flags)


def _enter_user_namespace() -> None:
    """Ids are mapped to themselves: all of them for root, its own for another user. Only a process outside may map more than one."""
    begin, begun = os.pipe()
    target = os.getpid()
    maps = {name: _identity(name) for name in ("uid_map", "gid_map")}
    scribe = os.fork()
    if scribe == 0:
        code = 1
        try:
            os.close(begun)
            if os.read(begin, 1):
                if os.geteuid() != 0:
                    Path(f"/proc/{target}/setgroups").write_text("deny")
                for name, text in maps.items():
                    Path(f"/proc/{target}/{name}").write_text(text)
                code = 0
        finally:
            os._exit(code)
    os.close(begin)
    try:
        unshare(CLONE_NEWUSER)
        os.write(begun, b"x")
    finally:
        os.close(begun)
        status = os.waitpid(scribe, 0)[1]
    if status != 0:
        raise OSError("the ids of a user namespace cannot be mapped")


def _identity(name: str) -> str:
    if os.geteuid() != 0:
        own = os.geteuid() if name == "uid_map" else os.getegid()
        return f"{own} {own} 1"
    lines = [line.split() for line in Path(f"/proc/self/{name}").read_text().splitlines()]
    return "\n".join(f"{inside} {inside} {count}" for inside, _, count in lines)
