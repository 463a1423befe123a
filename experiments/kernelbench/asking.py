"""Asks the process of `theirs.py` for evaluations, with a deadline."""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
from pathlib import Path
from typing import Any

THEIRS = Path(__file__).parent / "theirs.py"


class Late(Exception):
    """The process did not answer in time, or ended; it is gone."""


class Theirs:
    """One process; `ready` is its first answer. Use it as a context manager.

    Args:
        root: Of a checkout of KernelBench.
        log: What the process prints goes there.
        deadline_s: Until it is ready.

    Raises:
        Late: It did not become ready.
    """

    def __init__(self, root: Path, log: Path, deadline_s: float) -> None:
        self._log = log.open("w", encoding="utf-8")
        command = [sys.executable, str(THEIRS), str(root)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log)
        self._pending = b""
        self.ready = self._answer(deadline_s)

    def __enter__(self) -> Theirs:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def evaluate(self, problem: Path, source: str, deadline_s: float) -> dict[str, Any]:
        """One evaluation; see `theirs.answer`.

        Raises:
            Late: See there.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"problem": str(problem), "source": source}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise Late(f"KernelBench's process ended: {error}") from error
        return self._answer(deadline_s)

    def close(self) -> None:
        """Ends the process. Idempotent."""
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def _answer(self, deadline_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(deadline_s):
                    self.close()
                    raise Late(f"KernelBench's process did not answer within {deadline_s:.0f} s")
                data = self._process.stdout.read1(1 << 16)  # type: ignore[attr-defined]
                if not data:
                    self.close()
                    raise Late(f"KernelBench's process ended; see {self._log.name}")
                self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer
