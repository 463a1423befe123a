"""Watches a search from outside, as its user would: what its store holds, how busy GPUs are, what the engine's process uses."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evo.errors import StoreError
from population_store.base import PopulationStore
from population_store.opening import open_store

PERIOD_S = 0.25
WINDOW = (0.15, 0.85)
"""Shares of the evaluations between which rates are taken: before, starting kernels are tuned; after, evaluators run out of work."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Sample:
    """The run at one moment.

    Attributes:
        at: Seconds since the run was started.
        evaluations, gpu_s: Recorded so far.
        best: Task → best fitness so far.
        engine_s: CPU seconds of the engine's process.
        busy: Share of the last moments in which some kernel ran, of each GPU, as its driver says; empty without GPUs.
    """

    at: float
    evaluations: int
    gpu_s: float
    best: Mapping[str, float]
    engine_s: float
    busy: tuple[float, ...]


class Watch:
    """Samples a run below this process from its making until `stop`.

    Args:
        store: Where the run's store is or will be.
        tasks: Of the run.
        gpus: How many of the visible GPUs it uses.
    """

    def __init__(self, store: Path, tasks: Sequence[str], gpus: int) -> None:
        self._store, self._tasks, self._gpus = store, tasks, gpus
        self._begun = time.monotonic()
        self._engine: int | None = None
        self._stopped = threading.Event()
        self.samples: list[Sample] = []
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._thread.start()

    def evaluations(self) -> int:
        """As last seen."""
        return self.samples[-1].evaluations if self.samples else 0

    def now(self) -> float:
        """Seconds since the run was started."""
        return time.monotonic() - self._begun

    def stop(self) -> list[Sample]:
        """All samples."""
        self._stopped.set()
        self._thread.join()
        return self.samples

    def _watch(self) -> None:
        with _devices(self._gpus) as busy, contextlib.ExitStack() as stack:
            store: PopulationStore | None = None
            while not self._stopped.wait(PERIOD_S):
                if store is None:
                    with contextlib.suppress(StoreError):  # not there yet
                        store = stack.enter_context(open_store(str(self._store)))
                if store is not None:
                    self.samples.append(self._sample(store, busy()))

    def _sample(self, store: PopulationStore, busy: tuple[float, ...]) -> Sample:
        best = {task: fitness for task in self._tasks if (fitness := _best(store, task)) is not None}
        if self._engine is None:
            self._engine = next(iter(processes_below("EngineActor")), None)
        engine_s = _cpu_s(self._engine) if self._engine is not None else 0.0
        spent = store.spent
        return Sample(self.now(), spent.evaluations, spent.gpu_s, best, engine_s, busy)


def _best(store: PopulationStore, task: str) -> float | None:
    return next(((row.verify or row.search).fitness for row in store.ranking(task, limit=1)), None)


def processes_below(title: str) -> list[int]:
    """Processes of Ray actors of that class among the descendants of this process, the oldest first."""
    parents: dict[int, int] = {}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            pid = int(folder.name)
            parents[pid] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if (folder / "cmdline").read_bytes().startswith(b"ray::" + title.encode()):
                found.append(pid)
    return sorted(pid for pid in found if _below(pid, parents))


def _below(pid: int, parents: Mapping[int, int]) -> bool:
    while pid in parents and pid != os.getpid():
        pid = parents[pid]
    return pid == os.getpid()


def _cpu_s(pid: int) -> float:
    """Of a process so far, in all its threads; 0 where it has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS
    return 0.0


@contextlib.contextmanager
def _devices(gpus: int) -> Iterator[Any]:
    """A function that gives the present utilisation of the first GPUs."""
    if gpus == 0:
        yield tuple
        return
    import pynvml

    nvml: Any = pynvml
    nvml.nvmlInit()
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(gpus)]
        yield lambda: tuple(nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100 for handle in handles)
    finally:
        nvml.nvmlShutdown()


def figures(samples: Sequence[Sample], evaluations: int, gpus: int) -> dict[str, Any]:
    """What a run's samples say.

    Args:
        samples: In order.
        evaluations: Its budget.
        gpus: On so many.

    Returns:
        ``per_minute``: evaluations in the window of `WINDOW`; ``wall_s``: until the last of them; ``measured_share``: device seconds that
        evaluations used over those that there were; ``busy``: mean utilisation as the driver says, None without; ``engine_share``: CPU
        seconds of the engine's process per second; ``best``: task → fitness at the end.
    """
    first = next(sample for sample in samples if sample.evaluations >= WINDOW[0] * evaluations)
    last = next(sample for sample in samples if sample.evaluations >= WINDOW[1] * evaluations)
    between = [sample for sample in samples if first.at < sample.at <= last.at]
    took = last.at - first.at
    busy = [share for sample in between for share in sample.busy]
    return {
        "per_minute": 60 * (last.evaluations - first.evaluations) / took,
        "window_s": took,
        "wall_s": next(sample.at for sample in samples if sample.evaluations == samples[-1].evaluations),
        "measured_share": (last.gpu_s - first.gpu_s) / (took * max(gpus, 1)),
        "busy": sum(busy) / len(busy) if busy else None,
        "engine_share": (last.engine_s - first.engine_s) / took,
        "best": dict(samples[-1].best),
    }


def seconds_until(samples: Sequence[Sample], wanted: Mapping[str, float]) -> float | None:
    """When every task had reached its wanted fitness; None where that never was."""
    return next((s.at for s in samples if all(s.best.get(task, 0.0) >= fitness for task, fitness in wanted.items())), None)
