"""Ends what a start that was broken off leaves behind: processes that lost their parent would live on with nobody to end them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
PATIENCE_S = 5.0


@contextlib.contextmanager
def nothing_left_of_a_failed_start(end: Callable[[], None]) -> Iterator[None]:
    """Where the block raises, all processes are ended that this one has below it and had not before.

    Within the block, processes below this one that lose their parent become its children, so that none of them is missed.

    Args:
        end: The gentle way, tried first.
    """
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    before = set(children())
    try:
        yield
    except BaseException:
        end()
        _end_all(before)
        raise
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0)


def children() -> list[int]:
    """Processes that have this one for a parent."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(folder.name))
    return found


def _end_all(spared: set[int]) -> None:
    """Children die, and what was below them comes up as children, until there are none."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and (left := set(children()) - spared):
        for pid in left:
            with contextlib.suppress(OSError):  # it ended meanwhile, or somebody else has waited for it
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
