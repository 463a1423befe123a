"""How much memory all processes of a sandbox use together: a limit of address space binds each one on its own only."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

_PAGE = resource.getpagesize()


def total_bytes(enough: int) -> int:
    """Memory of all processes that this process sees in its own /proc, except itself.

    Args:
        enough: Up to here a rough sum will do, which counts pages that processes share once for each.
    """
    me = str(os.getpid())
    others = [name for name in os.listdir("/proc") if name.isdigit() and name != me]
    rough = sum(_resident_bytes(name) for name in others)
    return rough if rough <= enough else sum(_proportional_bytes(name) for name in others)


def _resident_bytes(process: str) -> int:
    with contextlib.suppress(OSError):  # it ended
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE
    return 0


def _proportional_bytes(process: str) -> int:
    """Each page shared among several counts for its part."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
