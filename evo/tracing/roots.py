"""A root folder of its own for confined processes, in which nothing else than what is granted exists: for kernels without Landlock.

A server builds the tree once, out of bind mounts, most of them read-only; each call's child makes it its root.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from evo.tracing.kernel import CLONE_NEWNS, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_REC, libc, mount, syscall, unshare
from evo.tracing.landlock import READ_DIR, WRITE_FILE, Grant

_MS_RDONLY, _MS_REMOUNT, _MS_BIND = 1, 1 << 5, 1 << 12
_KEPT = {2: MS_NOSUID, 4: MS_NODEV, 8: MS_NOEXEC, 1024: 1 << 10, 2048: 1 << 11, 4096: 1 << 21}
"""Flags of statvfs to those of mount: what a mount forbids must be kept by one without full rights."""
_MNT_DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}


def build(tree: Path, grants: Iterable[Grant]) -> bool:
    """Makes the tree in an empty folder, in mounts of this process' own; tells whether it could.

    Args:
        tree: The folder.
        grants: What the tree holds. Grants of names only, and of /proc, are left out.
    """
    try:
        mount("tmpfs", str(tree), "tmpfs", MS_NOSUID | MS_NODEV, "size=4m,mode=755")
        (tree / "proc").mkdir()
        bound: set[str] = set()
        for grant in sorted(grants, key=lambda item: item.path):
            real = os.path.realpath(grant.path)
            if grant.rights == READ_DIR or real.startswith("/proc") or not os.path.exists(real):
                continue
            _repeat_links(tree, grant.path)
            if not any(str(folder) in bound for folder in (Path(real), *Path(real).parents)):
                bind(tree, real, writable=bool(grant.rights & WRITE_FILE))
                bound.add(real)
    except OSError:
        return False
    return True


def bind(tree: Path, path: str, *, writable: bool) -> None:
    """Puts a file or folder into the tree, at its own path."""
    target = tree / path.lstrip("/")
    if os.path.isdir(path):
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount(path, str(target), "none", _MS_BIND | MS_REC)
    if not writable:
        kept = os.statvfs(path).f_flag
        flags = sum(flag for bit, flag in _KEPT.items() if kept & bit)
        mount("none", str(target), "none", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | flags)


def enter(tree: Path) -> None:
    """Makes the tree the root of this process, which has mounts of its own, and leaves all else behind."""
    mount("proc", str(tree / "proc"), "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    os.chdir(tree)
    syscall(_PIVOT_ROOT[os.uname().machine], b".", b".")
    libc("umount2", b".", _MNT_DETACH)  # the old root, which lies on the new one
    os.chdir("/")
    mount(
        "none", "/", "none", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | MS_NOSUID | MS_NODEV
    )  # what it held would be there in the next call


def can_enter(tree: Path) -> bool:
    """Whether `enter` works, tried in a forked process."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            unshare(CLONE_NEWNS)
            enter(tree)
            code = 0
        except OSError:
            code = 1
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def _repeat_links(tree: Path, path: str) -> None:
    """Repeats the symbolic links that a path goes through, so that it leads to the same place in the tree."""
    waiting = [Path(path)]
    seen: set[Path] = set()
    while waiting:
        parts = Path(os.path.normpath(waiting.pop())).parts
        for depth in range(2, len(parts) + 1):
            step = Path(*parts[:depth])
            if step.is_symlink() and step not in seen:
                seen.add(step)
                there = tree / str(step).lstrip("/")
                there.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileExistsError):
                    there.symlink_to(os.readlink(step))
                waiting.append(Path(step.parent, os.readlink(step), *parts[depth:]))
                break
