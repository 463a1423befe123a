"""Builds what launches kernels ahead of the device: some versions of Triton compile host code per signature, for a second each."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from evo.errors import WorkerDied
from evo.evaluation.runner import build_launcher
from evo.evaluation.stages import StageClock
from evo.evaluation.tier import Candidate
from evo.evaluation.worker import Nursery, Worker
from evo.tracing.compiler import Binary
from evo.tracing.plan import Kernel

DEADLINE_S = 120.0


class LauncherProcess:
    """Served by `evo.evaluation.worker`; uses no device."""

    def build(self, kernel: Kernel, binary: Binary) -> None:
        """Leaves the host code in Triton's cache on disk."""
        build_launcher(kernel, binary)


class Launchers:
    """Builds each launcher once. Thread-safe.

    Args:
        nursery: Where the process comes from.
        clock: For the stage ``launchers``.
    """

    def __init__(self, nursery: Nursery, clock: StageClock) -> None:
        self._worker = Worker(nursery, "launchers", "evo.evaluation.launchers:LauncherProcess")
        self._clock = clock
        self._lock = Lock()
        self._built: set[str] = set()

    def build(self, candidates: Sequence[Candidate]) -> None:
        """Builds those of all kernels. One that cannot be built is left to the replay process, which will say why."""
        for candidate in candidates:
            for kernel, binary in zip(candidate.plan.kernels, candidate.binaries, strict=True):
                key = repr((kernel.signature, binary.metadata.get("tensordesc_meta")))
                if key in self._built:
                    continue
                with self._lock, self._clock.stage("launchers"):
                    if key in self._built:
                        continue
                    try:
                        self._worker.call("build", kernel, binary, deadline_s=DEADLINE_S)
                    except WorkerDied:
                        self._clock.count("launchers failed")
                    self._built.add(key)

    def close(self) -> None:
        """Ends the process. Idempotent."""
        self._worker.stop()
