"""Who may write a store that is a file: a lock which the kernel gives back however its owner dies.

The lock is `flock` on a sidecar `STORE.lock`. Not on the store itself, because closing any descriptor of that file would drop the
locks SQLite holds on it; not a row or a pid file alone, because nobody clears those after `kill -9`. It holds between processes
of one host, as SQLite's WAL mode does.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
import weakref
from datetime import UTC, datetime
from pathlib import Path

from evo.errors import StoreError, StoreInUseError

DYING_S = 20.0
"""How long an owner that was killed may take to die on a busy machine."""

_held: weakref.WeakSet[FileOwnership] = weakref.WeakSet()


class FileOwnership:
    """Exclusive ownership of the store at `store`, from construction to `release` or the end of the process.

    Raises:
        StoreInUseError: Another process, or another part of this one, has it; the message says which.
        OSError: The sidecar cannot be created or locked.
    """

    def __init__(self, store: Path) -> None:
        self.path = Path(f"{store}.lock")
        self._pid = os.getpid()
        self._descriptor: int | None = _lock(store, self.path)
        _held.add(self)
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, _introduction().encode(), 0)
        except OSError:
            self.release()
            raise

    @property
    def held(self) -> bool:
        """Whether this process has it; False in a forked child."""
        return self._descriptor is not None and self._pid == os.getpid()

    def release(self) -> None:
        """Gives it up and removes the sidecar. Idempotent."""
        if self._descriptor is None:
            return
        if self.held:
            self.path.unlink(missing_ok=True)  # before unlocking: later it may be the next owner's
        self.abandon()

    def abandon(self) -> None:
        """Closes this process's descriptor only; the lock stays as long as the owner has its own."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _lock(store: Path, path: Path) -> int:
    deadline = time.monotonic() + DYING_S
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still_at(descriptor, path):
                return descriptor
        except BlockingIOError:
            owner, dying = _owner(descriptor), _owner_is_dying(descriptor)
            os.close(descriptor)
            if dying and time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            action = "wait for it or stop it; `triton-evolve status` reads the store meanwhile"
            raise StoreInUseError(f"{store}: in use by {owner}", action=action) from None
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise StoreError(f"{store}: its file system has no file locks", action="put the store on a local disk") from error
            raise
        os.close(descriptor)  # its owner removed the file between our open and our lock


def _is_still_at(descriptor: int, path: Path) -> bool:
    ours = os.fstat(descriptor)
    try:
        theirs = path.stat()
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)


def _introduction() -> str:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": now}) + "\n"


def _owner(descriptor: int) -> str:
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {owner['pid']} on {owner['host']} since {owner['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process"  # it has the lock and has not written its name yet


def _owner_is_dying(descriptor: int) -> bool:
    """Whether the owner was killed and the kernel has not taken down all of its threads yet: until then they hold its files."""
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
        return owner["host"] == socket.gethostname() and is_dying(int(owner["pid"]))
    except (ValueError, KeyError, TypeError):
        return False


def is_dying(pid: int) -> bool:
    """Whether a process of this host was killed or has ended; False where nothing tells."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return Path("/proc/self/stat").exists()
    return state in ("Z", "X")


def _leave_locks_to_the_parent() -> None:
    for ownership in list(_held):
        ownership.abandon()


# A forked child shares the lock: if it outlived its parent, the store would stay in use by nobody.
os.register_at_fork(after_in_child=_leave_locks_to_the_parent)
