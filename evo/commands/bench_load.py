"""Samples how busy this machine's GPU and cores are while something runs."""

from __future__ import annotations

import contextlib
import statistics
import threading
from pathlib import Path
from typing import Any

from evo.commands.measured import first_gpu

PERIOD_S = 0.1


class Load:
    """Samples from its making until `stop`. The GPU's figure is NVML's utilisation: the share of time in which some kernel ran."""

    def __init__(self) -> None:
        self._cpu = _cpu_times()
        self._samples: list[float] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="gpu load", daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, float]:
        """Mean shares: ``cpu``, and ``gpu`` where there is one that tells."""
        self._stopped.set()
        self._thread.join()
        busy, total = (after - before for after, before in zip(_cpu_times(), self._cpu, strict=True))
        shares = {"cpu": busy / total if total else 0.0}
        if self._samples:
            shares["gpu"] = statistics.fmean(self._samples) / 100
        return shares

    def _sample(self) -> None:
        try:
            import pynvml
        except ImportError:
            return
        nvml: Any = pynvml
        with contextlib.suppress(nvml.NVMLError):  # no driver, or a device that does not tell: there is no figure then
            nvml.nvmlInit()
            name = first_gpu()
            handle = nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID(name)
            while not self._stopped.wait(PERIOD_S):
                self._samples.append(float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu))


def _cpu_times() -> tuple[float, float]:
    """Busy and total ticks of all cores since boot; zeros where the system does not tell."""
    try:
        fields = [float(item) for item in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return 0.0, 0.0
    idle = fields[3] + fields[4]
    return sum(fields) - idle, sum(fields)
