"""Says where an evaluator's time goes: thread seconds per stage, counts, and device seconds that overlapping calls share."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock, get_ident, local

STAGES = ("prepare", "wait for device", "check", "judge", "tune", "time")
"""Stages of the ladder and of its tier. ``prepare`` is tracing and compiling as a climb waits for it; ``check`` is without its judging
and its waits, which are stages within it. Seconds are summed over climbs, so stages that run side by side add up to more than the
wall time."""


class StageClock:
    """Seconds and counts of one evaluator. Thread-safe.

    Device time is divided: of a second in which two calls have the device, each gets half, so the shares of all calls add up to the
    seconds in which the device was in use.

    Args:
        now: Monotonic seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = Lock()
        self._seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)
        self._counts: Counter[str] = Counter()
        self._using: Counter[int] = Counter()
        self._shares: defaultdict[int, float] = defaultdict(float)
        self._nested = local()
        self._device_s = 0.0
        self._settled = now()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds the seconds of a block to a stage, but for those of stages within it."""
        started, outer = self._now(), getattr(self._nested, "seconds", 0.0)
        self._nested.seconds = 0.0
        try:
            yield
        finally:
            whole = self._now() - started
            with self._lock:
                self._seconds[name] = self._seconds.get(name, 0.0) + whole - self._nested.seconds
            self._nested.seconds = outer + whole

    def count(self, name: str, times: int = 1) -> None:
        """Counts something that happened."""
        with self._lock:
            self._counts[name] += times

    @contextmanager
    def device(self) -> Iterator[None]:
        """The calling thread has the device, perhaps beside others, for a block."""
        me = get_ident()
        with self._lock:
            self._settle()
            self._using[me] += 1
        try:
            yield
        finally:
            with self._lock:
                self._settle()
                self._using[me] -= 1
                if not self._using[me]:
                    del self._using[me]

    @property
    def device_s(self) -> float:
        """Seconds in which at least one call had the device."""
        with self._lock:
            self._settle()
            return self._device_s

    @property
    def my_device_s(self) -> float:
        """The calling thread's share of `device_s`."""
        with self._lock:
            self._settle()
            return self._shares[get_ident()]

    @property
    def seconds(self) -> Mapping[str, float]:
        """Stage → seconds so far."""
        with self._lock:
            return dict(self._seconds)

    @property
    def counts(self) -> Mapping[str, int]:
        """What was counted → how often."""
        with self._lock:
            return dict(self._counts)

    def _settle(self) -> None:
        now = self._now()
        if self._using:
            elapsed = now - self._settled
            self._device_s += elapsed
            for user in self._using:
                self._shares[user] += elapsed / len(self._using)
        self._settled = now
