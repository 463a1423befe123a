"""Times several ways to compute one case of a task beside each other, on this machine's GPU.

Device latency: CUDA graphs over input sets that exceed twice the L2 cache, less the time of an empty graph, all sides in random order
within a round, medians; ratios with 95 % bootstrap intervals over rounds. Call latency: wall time per call of back-to-back calls as a
user makes them, wrapper and dispatch included.
"""

from __future__ import annotations

import importlib.util
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from evo.evaluation.graphs import Stopwatch, event
from evo.evaluation.inputs import make_inputs
from evo.evaluation.statistics import case_interval
from evo.records import Configuration
from evo.tasks.base import Case, Task

ROUNDS = 40
GRAPH_US = 200.0
CALLS = 30

Side = Callable[..., Any]
"""Called with a case's arguments."""


@dataclass(frozen=True)
class Ceiling:
    """Achievable rates of this device, measured at the start: bytes/s of a large copy, flop/s of an 8192³ fp16 product."""

    bandwidth: float
    flops: float

    def floor_us(self, case: Case) -> float:
        """No kernel for the case runs much faster."""
        return max(case.bytes / self.bandwidth, case.flops / self.flops) * 1e6


def measure_ceiling() -> Ceiling:
    """Copies 4 GiB, and multiplies 8192×8192 fp16 matrices of random numbers, ten times each."""
    source = torch.empty(1 << 32, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.float16) for _ in range(2))
    seconds = [_median_seconds(lambda: target.copy_(source)), _median_seconds(lambda: a @ b)]
    return Ceiling(2 * source.numel() / seconds[0], 2 * 8192**3 / seconds[1])


def _median_seconds(work: Callable[[], object]) -> float:
    times = []
    for number in range(13):
        begin, end = event(), event()
        begin.record()
        work()
        end.record()
        end.synchronize()
        if number >= 3:
            times.append(float(begin.elapsed_time(end)) / 1e3)
    return statistics.median(times)


def measure_case(task: Task, case: Case, sides: Mapping[str, Side], over: str) -> dict[str, Any]:
    """Device and call latencies of all sides on one case, interleaved.

    Args:
        task, case: What is computed.
        sides: Name → call.
        over: The side that ratios are over.

    Returns:
        ``device_us`` and ``call_us``: side → microseconds; ``ratios``: side → logarithms over `over`, by round; ``intervals`` of them;
        ``noise``: half-width of the interval of `over` against itself; ``failed``: side → why it has no figures.

    Raises:
        RuntimeError: `over` itself could not be timed.
    """
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    count = max(1, min(32, -(-2 * l2 // case.bytes)))
    sets = [make_inputs(task, case, 1000 + index, "cuda").arguments for index in range(count)]
    stopwatch = Stopwatch(torch.device("cuda:0"), l2)
    graphs, failed = {}, {}
    for side, call in sides.items():
        try:
            _check_capturable(call, sets[0])
            graphs[side] = captured(call, sets, stopwatch)
        except Exception as error:  # noqa: BLE001 - whatever a library or a compiler raises
            failed[side] = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    if over not in graphs:
        raise RuntimeError(f"{task.name}, {case.name}: {over} cannot be timed: {failed[over]}")
    order = random.Random(case.name)
    device: dict[str, list[float]] = {side: [] for side in graphs}
    repeat: list[float] = []
    for _ in range(ROUNDS):
        names = [*graphs, "again"]
        order.shuffle(names)
        for name in names:
            graph, calls = graphs[over if name == "again" else name]
            (repeat if name == "again" else device[name]).append(stopwatch.replay_us(graph) / calls)
    calls_us = {side: call_us(sides[side], sets) for side in graphs}
    graphs.clear()
    del sets
    torch.cuda.empty_cache()
    ratios = {side: [math.log(a / b) for a, b in zip(device[side], device[over], strict=True)] for side in device if side != over}
    return {
        "device_us": {side: statistics.median(values) for side, values in device.items()},
        "call_us": calls_us,
        "ratios": ratios,
        "intervals": {side: plain(case_interval(values, seed=0)) for side, values in ratios.items()},
        "noise": case_interval([math.log(a / b) for a, b in zip(repeat, device[over], strict=True)], seed=0).half_width,
        "failed": failed,
    }


def _check_capturable(call: Side, arguments: Sequence[Any]) -> None:
    """Raises where a call fails, or waits for the device: within a capture that would end the capture's stream."""
    with torch.no_grad():
        call(*arguments)
        torch.cuda.synchronize()
        with _no_waiting():
            call(*arguments)
        torch.cuda.synchronize()


@contextmanager
def _no_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def captured(call: Side, sets: Sequence[tuple[Any, ...]], stopwatch: Stopwatch) -> tuple[torch.cuda.CUDAGraph, int]:
    """A CUDA graph of several calls over all input sets, and how many calls it holds."""
    with torch.no_grad():
        for arguments in sets:
            call(*arguments)
    once_us = max(0.5, stopwatch.once_us(lambda: call(*sets[0])))
    rounds = max(1, min(400 // len(sets), round(GRAPH_US / (once_us * len(sets)))))
    graph = stopwatch.capture(lambda: [call(*arguments) for _ in range(rounds) for arguments in sets])
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    return graph, rounds * len(sets)


def call_us(call: Side, sets: Sequence[tuple[Any, ...]], calls: int = CALLS) -> float:
    """Median wall microseconds per call over five runs of so many back-to-back calls, synchronised at both ends."""
    runs = []
    with torch.no_grad():
        call(*sets[0])
        for _ in range(5):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for number in range(calls):
                call(*sets[number % len(sets)])
            torch.cuda.synchronize()
            runs.append((time.perf_counter() - begin) / calls * 1e6)
    return statistics.median(runs)


def entry_of(task: Task, source: str, configuration: Configuration) -> Side:
    """The entry of a module of its own, with its CONFIG set."""
    path = Path(tempfile.mkdtemp()) / "kernel.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(f"kernel_{random.getrandbits(48)}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if configuration:
        module.CONFIG.update(configuration)
    entry: Side = getattr(module, task.entry)
    return entry


def plain(interval: Any) -> dict[str, float]:
    """Plain numbers of an Interval."""
    return {"point": interval.point, "low": interval.low, "high": interval.high}
