"""Owns a sandbox in which a suite's own scripts are run, so that it is noted what they call; see `evo.suites.recording_child`."""

from __future__ import annotations

from typing import Any

from evo.tracing.sandbox import ForkServer, Limits
from evo.tracing.zygote import Zygote

RECORDING_S = 90.0
"""CPU seconds that a file's scripts may take."""
DEADLINE_S = 240.0
"""Wall seconds, on a machine that does other things as well."""
MEMORY_BYTES = 12 << 30
"""Address space: large inputs are made without their values."""


class Recording:
    """A sandbox for scripts. Not thread-safe.

    Args:
        target: What the GPU claims to be, e.g. ``cuda:90``.
        zygote: Forks the sandbox, see `ForkServer`.
    """

    def __init__(self, target: str, *, zygote: Zygote | None = None) -> None:
        self._target = target
        limits = Limits(cpu_s=int(RECORDING_S), memory_bytes=MEMORY_BYTES)
        self._server = ForkServer("record", limits, preload=("evo.suites.recording_child",), zygote=zygote)

    def answer(
        self, source: str, driver: str, *, perf: str = "", name: str = "", launching: bool = True, by_pytest: bool = False
    ) -> dict[str, Any]:
        """Runs the kernel part and scripts that call it.

        Args:
            source: The kernel part.
            driver: The test part; its functions ``test…`` are called where it calls nothing itself.
            perf: A script of TritonBench's that measures, which imports the kernel part as a module of this `name`.
            name: See `perf`.
            launching: Only calls that launch a kernel are kept.
            by_pytest: The test part is written for pytest: its tests are run on some of their parameters.

        Returns:
            See `evo.suites.recording_child.record`.

        Raises:
            WorkerDied: The scripts took too long, or ended their process.
        """
        request = {"source": source, "driver": driver, "perf": perf, "name": name, "launching": launching}
        request["by_pytest"] = by_pytest
        request["target"] = self._target
        return self._server.call("evo.suites.recording_child:record", request, deadline_s=DEADLINE_S)

    def close(self) -> None:
        """Ends the sandbox."""
        self._server.close()
