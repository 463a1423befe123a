"""Starts `triton-evolve` as a user does, in a process of its own, and finds the processes below it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from evo.errors import StoreError
from evo.records import Spent
from population_store.opening import open_store

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 600.0
"""For one step of a test, on a machine that is busy with other tests."""


@contextlib.contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`triton-evolve ARGUMENTS` in `folder`, in a process group of its own like a terminal's job."""
    with (folder / "out.txt").open("a") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "evo.main", *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def wait_until(condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Returns once `condition` holds."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} within {patience_s:g} s")
        time.sleep(0.05)


def spent_of(store: Path) -> Spent:
    """What the store says now; nothing while it is being made."""
    try:
        with open_store(str(store)) as opened:
            return opened.spent
    except StoreError:
        return Spent()


def descendants(pid: int) -> list[int]:
    """All processes below one."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            children.setdefault(int(_stat(int(folder.name))[1]), []).append(int(folder.name))
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def titled(pids: list[int], text: str) -> list[int]:
    """Those whose command line contains a text."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if text in Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " "):
                found.append(pid)
    return found


def alive(pids: list[int]) -> list[int]:
    """Those that still run; a zombie that nobody reaped does not."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if _stat(pid)[0] not in "ZX":
                found.append(pid)
    return found


def kill(pid: int) -> None:
    """SIGKILL, unless it is gone already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
