"""Ties the life of a worker process to that of the process that started it."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Makes the kernel kill this process when its parent (Ray's raylet, which dies with the driver) is gone.

    Ray's own workers notice a lost raylet within seconds; a resumed run must not wait that long for the store's ownership.
    """
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died in between
        os.kill(os.getpid(), signal.SIGKILL)
