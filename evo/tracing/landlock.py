"""Landlock: which files a process and all that it starts may read and write, whoever owns them (Linux 5.19 and newer).

See https://docs.kernel.org/userspace-api/landlock.html for the rights and versions. Looking at a path (its size, owner, existence) is
not a right of Landlock's.
"""

from __future__ import annotations

import ctypes
import os
import platform
import stat
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from evo.tracing.kernel import syscall

_CREATE, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1
OLDEST, TCP_SINCE, SCOPES_SINCE, NEWEST = 2, 4, 6, 7
"""Versions. The first forbids all renames between folders, which compilers' caches need; past the last is not known here."""

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG, _MAKE_FIFO = 1 << 4, 1 << 5, 1 << 7, 1 << 8, 1 << 10
_MAKE_SYM, _REFER = 1 << 12, 1 << 13
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
READ = READ_FILE | READ_DIR
USE = READ | EXECUTE
CHANGE = READ | WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_FIFO | _MAKE_SYM | _REFER | TRUNCATE
DEVICE = READ_FILE | WRITE_FILE | IOCTL_DEV
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
_NETWORK = 0b11  # bind and connect of TCP
_SCOPES = 0b11  # abstract unix sockets, signals


@dataclass(frozen=True)
class Grant:
    """Rights on a file, or on a folder and all beneath it."""

    path: str
    rights: int


def version() -> int:
    """What the kernel offers: 0 where it has none, or one too old for us."""
    if platform.machine() not in ("x86_64", "aarch64"):
        return 0
    try:
        found = syscall(_CREATE, None, 0, _VERSION_FLAG)
    except OSError:  # not built in, not enabled, or refused by a container's filter
        return 0
    return min(found, NEWEST) if found >= OLDEST else 0


def prepare(grants: Iterable[Grant]) -> int | None:
    """A rule set, as a file descriptor for `restrict`: nothing but these grants, no TCP, no signal or abstract socket to others.

    Returns:
        None where the kernel has no Landlock.
    """
    offered = version()
    if not offered:
        return None
    files = (1 << 13 + (offered >= 2) + (offered >= 3)) - 1 | (IOCTL_DEV if offered >= 5 else 0)
    attributes = struct.pack("=QQQ", files, _NETWORK if offered >= TCP_SINCE else 0, _SCOPES if offered >= SCOPES_SINCE else 0)
    size = 24 if offered >= SCOPES_SINCE else 16 if offered >= TCP_SINCE else 8
    rules = syscall(_CREATE, ctypes.c_char_p(attributes), size, 0)
    os.set_inheritable(rules, False)
    for grant in grants:
        _add(rules, grant, files)
    return rules


def restrict(rules: int) -> None:
    """Puts this process under the rules, for good. It must have no new privileges."""
    syscall(_RESTRICT_SELF, rules, 0)
    os.close(rules)


def _add(rules: int, grant: Grant, handled: int) -> None:
    try:
        place = os.open(grant.path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # not on this machine
        return
    try:
        rights = grant.rights & handled
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _OF_FILES
        if rights:
            syscall(_ADD_RULE, rules, _RULE_PATH_BENEATH, ctypes.c_char_p(struct.pack("=Qi", rights, place)), 0)
    finally:
        os.close(place)
