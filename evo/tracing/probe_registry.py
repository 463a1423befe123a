"""What a probe of the sandbox is, and the list of all: another probe is another function with `@probe` in `evo.tracing.probe_actions`."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from evo.tracing.sandbox import Limits

LIMITS = Limits(
    memory_bytes=192 << 20, cpu_s=10, file_bytes=2 << 20, open_files=64, processes=32, max_reply_bytes=1 << 20, disk_bytes=8 << 20
)
"""Tight, so that going beyond them harms nobody where they do not bind."""

DEADLINE_S = 5.0
LAYERS = {
    errno.EPERM: "seccomp or missing capability",
    errno.EACCES: "Landlock or file permissions",
    errno.ENOENT: "own root or /proc",
    errno.ESRCH: "process namespace",
    errno.ENETUNREACH: "network namespace",
    errno.ECONNREFUSED: "network namespace",
}
"""What an error usually comes from, where a probe does not know better."""


class Stopped(Exception):
    """A layer stopped the probe.

    Args:
        layer: Which.
        detail: What it answered.
    """

    def __init__(self, layer: str, detail: str) -> None:
        super().__init__(f"{layer}: {detail}")


@dataclass(frozen=True)
class Bait:
    """What the caller laid out.

    Attributes:
        secret: In the caller's environment and in its victim's.
        pid: Of the victim, a process of the caller's user.
        port: Of a TCP listener on the loopback device.
        abstract: Name of an abstract unix socket that listens.
        private_file: In the user's home (or, where that cannot be written, beside the store), readable by the user only.
        store: A file such as a population store.
    """

    secret: str
    pid: int
    port: int
    abstract: str
    private_file: str
    store: str


@dataclass(frozen=True)
class Probe:
    """A hostile action.

    Attributes:
        name: What is tried.
        action: Runs in the child.
        deaths: How the child may end without an answer, by reason, and the layer that is then at work.
        deadline_s: Of the call.
        shared: The child's working folder is seen by the caller, who looks afterwards whether anything in it still changes.
    """

    name: str
    action: Callable[[Bait], str]
    deaths: Mapping[str, str]
    deadline_s: float
    shared: bool


PROBES: dict[str, Probe] = {}


def probe(
    name: str, *, deaths: Mapping[str, str] | None = None, deadline_s: float = DEADLINE_S, shared: bool = False
) -> Callable[[Callable[[Bait], str]], Callable[[Bait], str]]:
    """Registers a probe; see `Probe`."""

    def register(action: Callable[[Bait], str]) -> Callable[[Bait], str]:
        PROBES[name] = Probe(name, action, dict(deaths or {}), deadline_s, shared)
        return action

    return register


@contextlib.contextmanager
def stopped_by(layers: Mapping[int, str] | None = None) -> Iterator[None]:
    """Turns an OSError within the block into `Stopped`; `layers` says which layer an error number means here."""
    try:
        yield
    except OSError as error:
        number = error.errno or 0
        raise Stopped({**LAYERS, **(layers or {})}.get(number, "kernel"), str(error.strerror)) from error
