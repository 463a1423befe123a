"""The model that answers at once and the evaluator that costs nothing, the same for every system; runs in each one's environment.

Every evaluation that returns is a line ``time number`` in FOLDER/evaluated; those that hang are ``hung-0`` to ``hung-3`` there.
"""

from __future__ import annotations

import os
import random
import re
import time
from pathlib import Path

HANGING = 4
HANG_AFTER = 30
"""With ``PEERS_HANG`` set, the first evaluations after so many hang."""


def folder() -> Path:
    """Where the run lies."""
    return Path(os.environ["PEERS_FOLDER"])


def module(number: int) -> str:
    """A candidate: a number that no other one has."""
    return f"# EVOLVE-BLOCK-START\nNUMBER = {number}\n\n\ndef answer():\n    return NUMBER\n# EVOLVE-BLOCK-END\n"


def candidate() -> str:
    """What the model says."""
    return module(random.SystemRandom().randrange(1, 1 << 60))


def number_of(source: str) -> int:
    """The number of a candidate."""
    found = re.search(r"NUMBER = (\d+)", source)
    return int(found[1]) if found else -1


def hangs() -> bool:
    """Whether this evaluation is one of those that hang."""
    log = folder() / "evaluated"
    if not os.environ.get("PEERS_HANG") or not log.exists() or log.stat().st_size < 30 * HANG_AFTER:
        return False
    for place in range(HANGING):
        try:
            (folder() / f"hung-{place}").touch(exist_ok=False)
        except FileExistsError:
            continue
        return True
    return False


def score(number: int) -> float:
    """A quality between 0 and 1."""
    return (number % 1_000_003) / 1_000_003


def finished(number: int) -> None:
    """An evaluation returns."""
    line = f"{time.time():.3f} {number}\n".encode()
    descriptor = os.open(folder() / "evaluated", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line)
    os.close(descriptor)
