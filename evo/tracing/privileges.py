"""Makes a process a user who owns nothing and may do nothing, except, where it must, read files of others.

Where an interpreter or package lies below a private folder (say /root, mode 700), another user could not import it. Such a process
keeps one capability, CAP_DAC_READ_SEARCH, also for the programs it starts: it may open any file for reading, as root could, until
Landlock limits which. Without Landlock that is the lesser evil: the process can still neither write our files nor signal us. Containers
often lack that capability but have CAP_DAC_OVERRIDE, which is kept then: without Landlock, files may be written too, as by root.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

from evo.tracing.kernel import (
    PR_CAP_AMBIENT,
    PR_CAP_AMBIENT_CLEAR_ALL,
    PR_CAP_AMBIENT_RAISE,
    PR_SET_KEEPCAPS,
    libc,
    prctl,
)

NOBODY = 65534
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2
CAPABILITY_VERSION = 0x2008_0522


def drop(*, may_read_all: bool) -> bool:
    """Gives up root and every capability, in a process with no new privileges; tells whether the process is now a user of its own.

    Args:
        may_read_all: Keep a capability to read all files where we are root. Where it cannot be handed on to programs, the user stays.
    """
    reading = _reading_capability() if may_read_all and os.geteuid() == 0 else None
    changes = os.geteuid() == 0 and (not may_read_all or (reading is not None and _can_hand_on(reading)))
    with contextlib.suppress(OSError):  # an old or emulated kernel, which gives programs no capabilities this way either
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    changed = changes and _become_nobody(keep=may_read_all)
    _set_capabilities(0 if reading is None else 1 << reading)
    if changed and reading is not None:
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, reading)
    return changed


def can_change_user(*, may_read_all: bool) -> bool:
    """Whether `drop` would make a user of its own, tried in a forked process."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if drop(may_read_all=may_read_all) else 1
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def others_can_reach(places: Iterable[str | Path]) -> bool:
    """Whether a user who owns nothing could open what lies at each place that exists."""
    for place in places:
        path = Path(place)
        for folder in (path, *path.parents):
            with contextlib.suppress(FileNotFoundError):
                mode = folder.stat().st_mode
                if not mode & (0o001 if folder.is_dir() else 0o004):
                    return False
    return True


def _become_nobody(*, keep: bool) -> bool:
    try:
        if keep:
            prctl(PR_SET_KEEPCAPS, 1)
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    except OSError:  # not mapped in this user namespace, or no CAP_SETUID
        return os.geteuid() == NOBODY
    return True


def _reading_capability() -> int | None:
    """One of ours that lets a process read all files."""
    permitted = _status("CapPrm")
    return next((item for item in (CAP_DAC_READ_SEARCH, CAP_DAC_OVERRIDE) if permitted >> item & 1), None)


def _can_hand_on(capability: int) -> bool:
    """Whether a capability can be made ambient: without, programs that are started by another user would not find their files."""
    try:
        _set_capabilities(_status("CapPrm"), inheritable=1 << capability)
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability)
    except OSError:  # an old or emulated kernel
        return False
    return True


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1], 16)
    return 0


def _set_capabilities(permitted: int, inheritable: int | None = None) -> None:
    inheritable = permitted if inheritable is None else inheritable
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    sets = (permitted, permitted, inheritable)  # effective, permitted, inheritable
    data = (ctypes.c_uint32 * 6)(*(value >> shift & 0xFFFF_FFFF for shift in (0, 32) for value in sets))
    libc("capset", header, data)
