"""Where the search's randomness comes from: the run's seed, a purpose and a position, so that none of it is ever stored."""

from __future__ import annotations

import zlib
from enum import IntEnum

import numpy as np


class Draw(IntEnum):
    """What random numbers are for; each purpose has streams of its own."""

    CHOICE = 1
    RESTART = 2
    MODEL = 3


def stream(seed: int, draw: Draw, task: str, position: int) -> np.random.Generator:
    """The generator for one decision; equal arguments give equal numbers on every machine.

    Args:
        seed: Of the run.
        draw: The purpose.
        task: Task name.
        position: Request number, or count of restarts so far.
    """
    return np.random.default_rng([seed, int(draw), zlib.crc32(task.encode()), position])
