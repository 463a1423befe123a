"""Calls of the Linux kernel that Python has no function for, by ctypes: each raises the OSError it failed with."""

from __future__ import annotations

import ctypes
import os
from typing import Any

_LIBC = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS = 0x0002_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
PR_CAP_AMBIENT_CLEAR_ALL = 4

MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_REC, MS_PRIVATE = 1 << 14, 1 << 18


def libc(name: str, *arguments: Any) -> int:
    """Calls a function of the C library that returns -1 on failure.

    Args:
        name: Of the function.
        arguments: Integers (passed as long), bytes, None or ctypes values.
    """
    passed = [ctypes.c_long(item) if isinstance(item, int) else item for item in arguments]
    result = int(getattr(_LIBC, name)(*passed))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def prctl(option: int, *arguments: int) -> int:
    """The call of that name; the arguments that are not given are 0, as newer options insist on."""
    return libc("prctl", option, *(*arguments, 0, 0, 0, 0)[:4])


def syscall(number: int, *arguments: Any) -> int:
    """A system call by its number."""
    return libc("syscall", number, *arguments)


def unshare(flags: int) -> None:
    """Moves this process (for CLONE_NEWPID: its next children) to new namespaces."""
    libc("unshare", flags)


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mounts a filesystem."""
    libc("mount", source.encode(), target.encode(), kind.encode(), flags, options.encode() or None)
