"""Servers in which kernels of suites are interpreted: as many as threads ask at a time, each thread has one to itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from evo.evaluation.interpreted_files import MAX_OUTPUT_BYTES
from evo.tracing.sandbox import ForkServer, Limits
from evo.tracing.zygote import Zygote

CALL_S = 60.0
"""CPU seconds of one interpreted call."""
DEADLINE_S = 3 * CALL_S
"""Wall seconds, on a machine that does other things as well."""

_LOCK = threading.Lock()
_ZYGOTE = Zygote("interpret")
_IDLE: list[ForkServer] = []


@contextmanager
def interpreting_server() -> Iterator[ForkServer]:
    """A server that nobody else calls meanwhile; all of them end with this process."""
    with _LOCK:
        server = _IDLE.pop() if _IDLE else _made()
    try:
        yield server
    finally:
        with _LOCK:
            _IDLE.append(server)


def _made() -> ForkServer:
    limits = Limits(cpu_s=int(CALL_S), file_bytes=MAX_OUTPUT_BYTES)
    preload, environment = ("evo.evaluation.interpret_child",), {"TRITON_INTERPRET": "1"}
    return ForkServer("interpret", limits, preload=preload, environment=environment, zygote=_ZYGOTE)
