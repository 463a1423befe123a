"""What Ctrl-C and SIGTERM do: a command ends and tidies up; a run has a flag that its driver looks at, so that it stops cleanly."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it, and after SIGTERM."""


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


@contextlib.contextmanager
def ended_by_signals() -> Iterator[Callable[[], str | None]]:
    """SIGTERM ends what the block does as Ctrl-C does, by KeyboardInterrupt, so that nothing it started or made is left behind.

    Signals that this process was started to ignore (`nohup`, a script's job in the background) stay ignored.

    Yields:
        Which signal it was; None without one.
    """
    names: list[str] = []

    def end(number: int, frame: FrameType | None) -> None:
        names.append(signal.Signals(number).name)
        raise KeyboardInterrupt

    here = threading.current_thread() is threading.main_thread()  # no other may have handlers
    before = {number: signal.getsignal(number) for number in SIGNALS if here and signal.getsignal(number) is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, end)
    try:
        yield lambda: names[-1] if names else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
