"""Ends what a child does for too long, by an exception in its main thread; a single operation of torch is waited for."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def ended_after(seconds: float, error: BaseException, *, of_cpu: bool = False) -> Iterator[None]:
    """Raises the error once so many wall seconds, or seconds of the processor, are over.

    Args:
        seconds: From the beginning of the block.
        error: What is raised within it.
        of_cpu: Of this process's threads, user and system, which other work on the machine does not lengthen.
    """
    timer, number = (signal.ITIMER_PROF, signal.SIGPROF) if of_cpu else (signal.ITIMER_REAL, signal.SIGALRM)

    def end(number: int, frame: Any) -> None:
        raise error

    before = signal.signal(number, end)
    signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(number, before)
