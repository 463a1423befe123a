"""Small hostile actions, tried inside a real sandbox, and what stopped each: for `triton-evolve doctor` and the tests."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import evo.tracing.probe_actions  # noqa: F401  registers them
from evo.errors import WorkerDied
from evo.tracing.probe_registry import LIMITS, PROBES, Bait, Probe, Stopped
from evo.tracing.sandbox import ForkServer

__all__ = ["PROBES", "ProbeResult", "attempt", "run_probes"]


@dataclass(frozen=True)
class ProbeResult:
    """What a probe met.

    Attributes:
        name: What it tried.
        contained: It did not succeed.
        how: The layer that stopped it and what that answered, or what the probe got away with.
    """

    name: str
    contained: bool
    how: str


def run_probes(*, gpu: bool = False) -> tuple[ProbeResult, ...]:
    """Runs every probe in a sandbox of its own making, in a few seconds.

    Args:
        gpu: Try the sandbox of children with a GPU, which may do a little more.
    """
    with tempfile.TemporaryDirectory(prefix="triton-evolve-probe-") as folder, _bait(Path(folder)) as bait:
        server = ForkServer("probe", LIMITS, preload=(__name__,), gpu=gpu)
        try:
            return tuple(_result(server, one, bait, Path(folder)) for one in PROBES.values())
        finally:
            server.close()


def attempt(request: dict[str, Any]) -> dict[str, Any]:
    """Runs in the child: one probe by name."""
    try:
        return {"got": PROBES[request["name"]].action(Bait(**request["bait"]))}
    except Stopped as stopped:
        return {"stopped": str(stopped)}


def _result(server: ForkServer, one: Probe, bait: Bait, folder: Path) -> ProbeResult:
    scratch = Path(tempfile.mkdtemp(dir=folder)) if one.shared else None
    try:
        answer = server.call(
            f"{__name__}:attempt", {"name": one.name, "bait": asdict(bait)}, deadline_s=one.deadline_s, scratch=scratch
        )
    except WorkerDied as died:
        if died.reason not in one.deaths:
            return ProbeResult(one.name, False, f"the sandbox ended unexpectedly: {died.reason}")
        if scratch is not None and _changes(scratch):
            return ProbeResult(one.name, False, "a process went on after the sandbox's end")
        return ProbeResult(one.name, True, f"{one.deaths[died.reason]}: {died.reason}")
    if "stopped" in answer:
        return ProbeResult(one.name, True, str(answer["stopped"]))
    return ProbeResult(one.name, False, str(answer.get("got", "no answer")))


def _changes(folder: Path) -> bool:
    def sizes() -> list[int]:
        return [path.stat().st_size for path in sorted(folder.iterdir())]

    before = sizes()
    time.sleep(0.3)
    return sizes() != before


@contextlib.contextmanager
def _bait(folder: Path) -> Iterator[Bait]:
    secret = f"canary-{secrets.token_hex(8)}"
    store = folder / "population.sqlite"
    store.write_text(secret)
    home = Path.home() if os.access(Path.home(), os.W_OK) else folder
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0triton-evolve-{secret}")
        abstract.listen()
        private = stack.enter_context(tempfile.NamedTemporaryFile("w", dir=home, prefix=".triton-evolve-canary-"))
        private.write(secret)
        private.flush()
        os.environ["TRITON_EVOLVE_CANARY"] = secret
        stack.callback(os.environ.pop, "TRITON_EVOLVE_CANARY", None)
        victim = stack.enter_context(subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)", secret]))
        stack.callback(victim.kill)
        port = int(listener.getsockname()[1])
        yield Bait(secret, victim.pid, port, f"triton-evolve-{secret}", private.name, str(store))
