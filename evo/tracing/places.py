"""Which files a process with untrusted code needs: the interpreter, what it has loaded, its packages, the system's libraries and tools."""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from evo.tracing.landlock import CHANGE, DEVICE, READ, READ_DIR, READ_FILE, TRUNCATE, USE, WRITE_FILE, Grant

SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/nix/store", "/gnu/store")
SETTINGS = (
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime", "/etc/timezone"),
    *("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/os-release"),
    *("/sys/devices/system/cpu", "/sys/devices/system/node"),
)
"""No whole /etc: with the right to read what is private, it holds hashes of passwords and keys."""

OF_THE_MACHINE = tuple(
    f"/proc/{name}" for name in ("cpuinfo", "meminfo", "stat", "version", "filesystems", "sys/vm", "devices", "modules")
)
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
GPU_FILES = ("/proc/driver/nvidia", "/proc/driver/nvidia-uvm", "/proc/driver/nvidia-caps", "/sys", "/etc/nvidia")


@functools.cache
def needed() -> tuple[str, ...]:
    """Where the interpreter and what is imported lie."""
    whole = [sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values()]
    whole += [os.path.dirname(os.path.realpath(sys.executable)), *filter(_holds_packages, sys.path), *_loaded_packages()]
    return tuple(dict.fromkeys(path for path in map(os.path.realpath, whole) if not _private(path)))


def granted(*, gpu: bool, readable: Sequence[str], writable: Sequence[str], own_proc: bool) -> list[Grant]:
    """All that a confined process may open.

    Args:
        gpu: Also the files of NVIDIA's driver.
        readable, writable: Besides.
        own_proc: Whether /proc shows the process' own namespace only; else it sees itself and a few facts on the machine.
    """
    grants = [Grant(path, USE) for path in SYSTEM]
    grants += [Grant(path, READ) for path in SETTINGS]
    grants += [Grant(path, READ_FILE | WRITE_FILE) for path in DEVICES]
    grants += [Grant("/proc", READ)] if own_proc else [Grant(path, READ) for path in ("/proc/self", *OF_THE_MACHINE)]
    grants += _packages()
    grants += [Grant(path, USE) for path in readable]
    grants += [Grant(path, CHANGE) for path in writable]
    if gpu:
        grants += [Grant(path, READ) for path in GPU_FILES]
        grants += [Grant(str(path), DEVICE | READ_DIR) for path in Path("/dev").glob("nvidia*")]
        grants.append(Grant("/proc/self/task", READ | WRITE_FILE | TRUNCATE))  # CUDA names its threads there
    return grants


@functools.cache
def _packages() -> tuple[Grant, ...]:
    """The same for all calls of a server, which has imported what it will before the first one."""
    grants = dict.fromkeys(needed(), USE)
    for path in map(os.path.realpath, (*_tools(), *_loaded_libraries())):
        if not _private(path):
            grants[path] = USE
    for entry in dict.fromkeys(os.path.realpath(item) for item in sys.path if not _holds_packages(item)):
        for path, rights in _importable(entry).items():
            grants.setdefault(path, rights)
    return tuple(Grant(path, rights) for path, rights in grants.items() if not _within(path, rights, grants))


def _within(path: str, rights: int, grants: dict[str, int]) -> bool:
    return any(grants.get(str(parent), 0) & rights == rights for parent in Path(path).parents)


def _holds_packages(entry: str) -> bool:
    """Whether an entry of the search path is a folder of installed packages, or an archive, and so needed whole."""
    path = Path(entry)
    return path.name in ("site-packages", "dist-packages", "lib-dynload") or path.is_file()


def _importable(entry: str) -> dict[str, int]:
    """Rights on any other entry, such as the folder a run was started in, which may hold a store or a secret beside its packages.

    Of it, packages are needed, and the names of its files.
    """
    found = {} if _private(entry) else {entry: READ_DIR}
    with contextlib.suppress(OSError):  # not there, or not ours to list
        if not Path(entry, "evo", "__init__.py").is_file():  # ours are granted by being loaded
            found |= {str(path.parent): USE for path in Path(entry).glob("*/__init__.py")}
    return found


def _private(path: str) -> bool:
    """Whether a folder holds all of somebody's home."""
    homes = {os.path.realpath(pwd.getpwuid(os.getuid()).pw_dir)} if _known_user() else set()
    homes |= {os.path.realpath(os.environ[name]) for name in ("HOME", "TRITON_EVOLVE_HOME") if os.environ.get(name)}
    return path == "/" or any(home == path or home.startswith(path.rstrip("/") + "/") for home in homes)


def _known_user() -> bool:
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:  # a number that no file names, common in containers
        return False
    return True


def _tools() -> Iterator[str]:
    """Where programs and libraries are looked for. Of software below /opt, its whole folder: compilers keep parts beside `bin`."""
    for name in ("PATH", "LD_LIBRARY_PATH"):
        for entry in os.environ.get(name, "").split(os.pathsep):
            if os.path.isabs(entry):
                yield entry
                parts = Path(os.path.realpath(entry)).parts
                if parts[:2] == ("/", "opt") and len(parts) > 2:
                    yield str(Path(*parts[:3]))


def _loaded_libraries() -> set[str]:
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if line.count("/") and ".so" in line}
    return {os.path.dirname(path) for path in paths if path.startswith("/")}


def _loaded_packages() -> set[str]:
    """Top-level packages and modules wherever they lie: an editable install may keep one outside of the search path."""
    found: set[str] = set()
    for name, module in list(sys.modules.items()):
        if "." not in name:
            file = getattr(module, "__file__", None)
            found |= set(getattr(module, "__path__", ())) or ({file} if file else set())
    return {os.path.realpath(path) for path in found}
