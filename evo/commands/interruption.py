"""Turns Ctrl-C and SIGTERM into a flag that the driver looks at, so that a run stops cleanly."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Context in which the first signal sets `reason` and a second one raises KeyboardInterrupt.

    `ray.init` replaces signal handlers: call `install` again after it.
    """

    def __init__(self) -> None:
        self._reason: str | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        self._before = {number: signal.getsignal(number) for number in SIGNALS}
        self.install()
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def reason(self) -> str | None:
        """Why the run must stop, or None."""
        return self._reason

    def install(self) -> None:
        """Makes our handlers the current ones."""
        for number in SIGNALS:
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._reason is not None:
            raise KeyboardInterrupt
        self._reason = f"interrupted by {signal.Signals(number).name}"
