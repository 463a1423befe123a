"""Ends processes whose parent has ended, too: they would live on with nobody to end them. And lets a process end itself then."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import stat
import threading
import time
from collections.abc import Set as AbstractSet
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def take_in_orphans(wanted: bool = True) -> None:
    """Whether processes below this one that lose their parent become its children, so that none of them is missed."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(wanted))


def children() -> set[int]:
    """Processes that have this one for a parent."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(folder.name))
    return found


def end_children(patience_s: float, spared: AbstractSet[int] = frozenset()) -> None:
    """Children die, and what was below them comes up as children (see `take_in_orphans`), until there are none.

    Args:
        patience_s: Wall seconds after which the rest is left.
        spared: Children that are left alone.
    """
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline and (left := children() - spared):
        for pid in left:
            with contextlib.suppress(OSError):  # it ended meanwhile, or somebody else has waited for it
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def end_with_caller() -> None:
    """This process ends, at once, when its standard input does: a pipe that its caller holds open, and that the kernel closes when the
    caller dies, whatever is in between. Anything else, or a pipe that has ended already, is not looked at."""
    if not stat.S_ISFIFO(os.fstat(0).st_mode) or select.select([0], [], [], 0)[0]:
        return

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
