"""How many processes a sandbox has, and how much memory they use together: limits of a process bind each one on its own only."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

_PAGE = resource.getpagesize()


def descendants(most: int) -> list[str]:
    """Numbers, as /proc has them, of processes that this one has started, and that they have; orphans included where it is a subreaper.

    Args:
        most: One more than these are enough.
    """
    found: list[str] = []
    waiting = [Path("/proc/self")]
    while waiting and len(found) <= most:
        parent = waiting.pop()
        with contextlib.suppress(OSError):  # it ended
            for task in (parent / "task").iterdir():
                children = (task / "children").read_text().split()
                found += children
                waiting += [Path("/proc", child) for child in children]
    return found


def total_bytes(processes: list[str], enough: int) -> int:
    """Memory of processes together.

    Args:
        processes: From `descendants`.
        enough: Up to here a rough sum will do, which counts pages that processes share once for each.
    """
    rough = sum(map(_resident_bytes, processes))
    return rough if rough <= enough else sum(map(_proportional_bytes, processes))


def _resident_bytes(process: str) -> int:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE
    return 0


def _proportional_bytes(process: str) -> int:
    """Each page shared among several counts for its part; for a process that hides its pages, as a whole."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return _resident_bytes(process)
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
