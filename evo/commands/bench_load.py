"""Samples how busy this machine's GPU and cores are while something runs."""

from __future__ import annotations

import contextlib
import shutil
import statistics
import subprocess
import threading
from pathlib import Path

from evo.commands.measured import first_gpu

PERIOD_MS = 200


class Load:
    """Samples from its making until `stop`. The GPU's figure is NVML's utilisation: the share of time in which some kernel ran."""

    def __init__(self) -> None:
        self._cpu = _cpu_times()
        self._samples: list[float] = []
        self._process: subprocess.Popen[str] | None = None
        tool = shutil.which("nvidia-smi")
        if tool is not None:
            query = [tool, "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-i", first_gpu(), f"-lms={PERIOD_MS}"]
            self._process = subprocess.Popen(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self._reader = threading.Thread(target=self._read, name="gpu load", daemon=True)
            self._reader.start()

    def stop(self) -> dict[str, float]:
        """Mean shares: ``cpu``, and ``gpu`` where there is one that tells."""
        busy, total = (after - before for after, before in zip(_cpu_times(), self._cpu, strict=True))
        shares = {"cpu": busy / total if total else 0.0}
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._reader.join()
        if self._samples:
            shares["gpu"] = statistics.fmean(self._samples) / 100
        return shares

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):  # "[N/A]" where the driver does not tell
                self._samples.append(float(line))


def _cpu_times() -> tuple[float, float]:
    """Busy and total ticks of all cores since boot; zeros where the system does not tell."""
    try:
        fields = [float(item) for item in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return 0.0, 0.0
    idle = fields[3] + fields[4]
    return sum(fields) - idle, sum(fields)
