"""A process that this one starts: it gets no keys, what it says last is kept, and it ends with this one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import weakref
from typing import IO

from evo.exchanges import KEY_ENDINGS

_TOLD = 300
"""Last characters of a dead process's own words that are quoted."""

_SIGNALLED = 128
"""A shell, or our keeper of servers, says by a status above it that a signal ended what it had started."""

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


class Child:
    """It watches its standard input and ends where that does, so that none is left of a parent that was killed.

    Args:
        command: With its arguments.
        answers: It writes answers to its standard output; else that is kept like its other words.
        grace_s: How long it may take, once its standard input is closed, to end what it has started itself.
        gpus: Numbers of those that it may see; None for those that this process sees, which for a proposer of a run are none.
    """

    def __init__(self, command: list[str], *, answers: bool = False, grace_s: float = 0.0, gpus: str | int | None = None) -> None:
        self._grace_s = grace_s
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        environment = {key: value for key, value in os.environ.items() if not key.upper().endswith(KEY_ENDINGS)}
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, sys.path)
        )  # where it was started may not be where the package is
        environment |= dict.fromkeys(_VISIBLE, str(gpus)) if gpus is not None else {}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if answers else self._said,
            stderr=self._said,
            env=environment,
            start_new_session=True,
        )
        weakref.finalize(self, _end, self._process, grace_s)

    @property
    def dead(self) -> bool:
        """It has ended."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """Ends it, and leaves it to whoever waits for its answer to take notice."""
        self._process.kill()

    def end(self) -> None:
        """Ends it. Idempotent."""
        _end(self._process, self._grace_s)

    def how_it_ended(self, patience_s: float | None = None) -> str:
        """Its status and last words, in one line.

        Args:
            patience_s: After which it may have been ended from here.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        self.end()
        self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - 4 * _TOLD))
        words = " ".join(self._said.read().decode("utf-8", "replace").split())[-_TOLD:]
        status = self._process.returncode
        number = -status if status < 0 else max(0, status - _SIGNALLED)
        how = f"signal {number}" if number else f"status {status}"
        if number == signal.SIGKILL:
            how += ", as from a lack of memory" + (f" or after {patience_s:g} s" if patience_s is not None else "")
        return f"({how}): {words or 'it said nothing'}"


def _end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    if grace_s and process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    with contextlib.suppress(OSError):
        process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
