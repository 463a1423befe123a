"""The replay process: trusted, warm, one per GPU. It runs plans from binaries on inputs it draws from a secret seed, and times them."""

from __future__ import annotations

import pickle
import random
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing

from evo.errors import DeviceError
from evo.evaluation.bounded import Bounded
from evo.evaluation.checking import Checker
from evo.evaluation.graphs import MAX_ARENA_BYTES, Arena, Layout, Stopwatch, TimedGraph, same_bits
from evo.evaluation.health import Driver, Reading, ailment, uuid_of
from evo.evaluation.inputs import Inputs, make_inputs
from evo.evaluation.replay_messages import Compared, Missing, Ran, Work
from evo.evaluation.runner import LoadedKernel, check_plan, set_scratch_allocator
from evo.evaluation.worker import tell
from evo.tasks.base import Case, Task
from evo.tasks.draws import Draw
from evo.tasks.loading import load_task
from evo.tracing.compiler import Binary
from evo.tracing.plan import Kernel

LOADED_KERNELS = 512
BINARY_BYTES = 256 << 20
MAX_GRAPHS = 128
THROTTLE_PAUSE_S = 0.25
THROTTLE_ATTEMPTS = 20
PAIRS_PER_READING = 8
FIRST_LOOK = 3
"""Replays that tell whether a configuration is worth more of them."""
FIRST_PATTERN_BYTES = 4 << 20
BASELINE = 1 << 20
"""Added to the number of a placement for the baseline's copy of its code, also where a candidate has the same plan."""


class ReplayProcess:
    """Served by `evo.evaluation.worker`."""

    def __init__(self) -> None:
        self._device = torch.device("cuda:0")
        torch.cuda.init()  # type: ignore[no-untyped-call]
        properties = torch.cuda.get_device_properties(0)
        self._uuid = uuid_of(properties)
        self._driver = Driver(self._uuid)
        self._total_bytes = int(properties.total_memory)
        set_scratch_allocator(self._device)
        self._tasks: dict[str, Task] = {}
        self._binaries: Bounded[Binary] = Bounded(BINARY_BYTES, lambda binary: len(binary.data))
        self._loaded: Bounded[LoadedKernel] = Bounded(LOADED_KERNELS, lambda kernel: 1)
        self._inputs: Bounded[Inputs] = Bounded(min(16 << 30, self._total_bytes // 8), _input_bytes)
        self._l2_bytes = int(properties.L2_cache_size)
        self._arenas: Bounded[Arena] = Bounded(self._total_bytes // 4, self._arena_bytes, MAX_GRAPHS)
        self._graphs: Bounded[TimedGraph] = Bounded(1 << 62, lambda graph: 0, MAX_GRAPHS)
        self._kept: dict[int, Any] = {}
        self._token = secrets.randbits(48)  # what is released of a process that died must not be taken for outputs of this one
        self._counts: Counter[str] = Counter()
        self._stopwatch: Stopwatch | None = None
        unwell = ailment(self._device, FIRST_PATTERN_BYTES)  # which also loads what a health check needs, ahead of the fault
        if unwell:
            raise DeviceError(unwell)

    def describe(self) -> dict[str, Any]:
        """Device name, UUID, compute capability, multiprocessors."""
        properties = torch.cuda.get_device_properties(0)
        return {
            "name": properties.name,
            "uuid": self._uuid,
            "capability": (properties.major, properties.minor),
            "sms": properties.multi_processor_count,
            "nvml": self._driver.available,
        }

    def probe(self) -> bytes:
        """A tensor of three ones by CUDA IPC."""
        self._kept[0] = torch.ones(3, device=self._device)
        return bytes(ForkingPickler.dumps(self._kept[0]))

    def health(self) -> str:
        """What is wrong with the device; empty where it is well. See `evo.evaluation.health`."""
        return ailment(self._device)

    def read(self) -> Reading:
        """What the driver says at present."""
        return self._driver.read()

    def counts(self) -> dict[str, int]:
        """What happened in this process."""
        held = {"kernels loaded now": len(self._loaded), "inputs held, MB": self._inputs.held_bytes >> 20}
        return {**self._counts, **held, "device memory reserved, MB": torch.cuda.memory_reserved() >> 20}

    def check(self, asked: Sequence[tuple[Work, Draw, int]], by_ipc: bool, released: Sequence[int]) -> list[Ran] | Missing:
        """Runs plans in guarded, poisoned memory, each so many times in other surroundings, and hands the first outputs on. Stops
        after the first that used memory as it should not."""
        self.release(released)
        missing = self._take([work for work, _, _ in asked])
        if missing is not None:
            return missing
        answers = []
        for work, draw, repeats in asked:
            answers.append(self._check(work, draw, by_ipc, repeats))
            if not answers[-1].sound:
                break
        return answers

    def release(self, tokens: Sequence[int], trim: bool = False) -> None:
        """Drops outputs that were handed on, and with `trim` all memory that nobody uses."""
        for token in tokens:
            self._kept.pop(token, None)
        if tokens:
            torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]
        if trim or torch.cuda.memory_reserved() > self._total_bytes // 2:
            torch.cuda.empty_cache()

    def restore_inputs(self, asked: Sequence[tuple[Work, Draw]]) -> bool:
        """Whether remembered inputs of these draws are what they were; where not, all remembered inputs are forgotten. A kernel that
        writes anywhere in the device's memory must not harm the next one."""
        for work, draw in asked:
            task, case = self._case(work)
            kept = self._input(task, case, draw)
            again = make_inputs(task, case, draw.seed, self._device, draw.variation)
            if not all(same_bits(a.detach(), b.detach()) for a, b in zip(kept.tensors, again.tensors, strict=True)):
                self._forget()
                return False
        return True

    def latency(self, work: Work, seed: int, replays: int, worth_us: float) -> float | Missing:
        """Median device latency in microseconds, from CUDA graphs over rotating inputs; of fewer replays where the first ones all take
        more than `worth_us`."""
        missing = self._take([work])
        if missing is not None:
            return missing
        graph = self._graph(work, seed, 0, None)
        times = [graph.time_us() for _ in range(min(FIRST_LOOK, replays))]
        if min(times) <= worth_us:
            times += [graph.time_us() for _ in range(replays - len(times))]
        return sorted(times)[len(times) // 2]

    def compare(
        self, sides: Sequence[tuple[Work, Work]], seeds: Sequence[int], pairs: int, placement: int, order_seed: int, aa: bool
    ) -> list[Compared] | Missing:
        """Times candidates and baselines in random order, pair by pair, case by case.

        Args:
            sides: Candidate and baseline per case.
            seeds: Of the inputs, per case.
            pairs: Of each case.
            placement: Number of the arena.
            order_seed: Of the order within pairs.
            aa: Both sides are the baseline: their outputs need no look.
        """
        missing = self._take([work for pair in sides for work in pair])
        if missing is not None:
            return missing
        order = random.Random(order_seed)
        return [
            self._compare(candidate, baseline, seed, pairs, placement, order, aa)
            for (candidate, baseline), seed in zip(sides, seeds, strict=True)
        ]

    def _compare(
        self, candidate: Work, baseline: Work, seed: int, pairs: int, placement: int, order: random.Random, aa: bool
    ) -> Compared:
        tell(candidate.case)
        # Each side loads its code for itself and anew for each placement: where it lies is part of the placement.
        theirs = self._graph(baseline, seed, placement, None, copy=BASELINE + placement)
        ours = self._graph(candidate, seed, placement, theirs.layout, copy=placement)
        mine: list[float] = []
        other: list[float] = []
        looked_at, number = order.randrange(pairs), order.randrange(ours.layout.sets)
        timed: tuple[torch.Tensor, ...] = ()
        discarded = attempts = 0
        throttled = reasons = self._driver.throttled()
        while len(mine) < pairs and attempts < THROTTLE_ATTEMPTS:
            block: list[tuple[float, float]] = []
            for _ in range(min(PAIRS_PER_READING, pairs - len(mine))):
                times = {}
                for is_candidate in order.sample((True, False), 2):
                    times[is_candidate] = (ours if is_candidate else theirs).time_us()
                    if is_candidate and len(mine) + len(block) == looked_at:
                        timed = ours.outputs(number)
                block.append((times[True], times[False]))
            before, throttled = throttled, self._driver.throttled()
            if before or throttled:
                reasons = before or throttled
                discarded += len(block)
                attempts += 1
                time.sleep(THROTTLE_PAUSE_S)
                throttled = self._driver.throttled()
                continue
            mine += [pair[0] for pair in block]
            other += [pair[1] for pair in block]
        self._counts["pairs"] += len(mine)
        self._counts["pairs discarded"] += discarded
        as_checked = aa or not mine or self._as_checked(candidate, seed, placement, number, timed)
        reading = self._driver.read()
        return Compared(tuple(mine), tuple(other), as_checked, discarded, reasons if len(mine) < pairs else (), reading)

    def _as_checked(self, work: Work, seed: int, placement: int, number: int, timed: Sequence[torch.Tensor]) -> bool:
        task, _ = self._case(work)
        arena = self._arena(work, seed, placement)
        checker = Checker(work.plan, self._kernels(work), task, arena.inputs(number), arena.seed + number, self._device)
        checked = checker.run().outputs
        return len(timed) == len(checked) and all(same_bits(a, b) for a, b in zip(timed, checked, strict=True))

    def _check(self, work: Work, draw: Draw, by_ipc: bool, repeats: int) -> Ran:
        tell(work.case)
        task, case = self._case(work)
        inputs = self._input(task, case, draw)
        checker = Checker(work.plan, self._kernels(work), task, inputs, draw.seed, self._device)
        runs, differs = checker.repeats(repeats)
        first = runs[0]
        self._token += 1
        self._kept[self._token] = first.outputs
        tensors = [item.detach() for item in first.outputs]
        data = bytes(ForkingPickler.dumps(tensors)) if by_ipc else pickle.dumps([item.cpu() for item in tensors])
        changed = tuple(dict.fromkeys(key for run in runs for key in checker.changed(run)))
        violations = sum(run.memory.violations() for run in runs)
        if violations or changed:
            self._forget()  # whoever writes beyond its buffers may have met something that is remembered
        peak = max(first.memory.nbytes - first.supplied, work.plan.scratch_bytes)
        torch.cuda.synchronize()
        return Ran(self._token, first.structure, data, violations, changed, differs, peak)

    def _take(self, works: Sequence[Work]) -> Missing | None:
        """Remembers binaries that came along and says which are missing."""
        for work in works:
            for binary in work.binaries:
                if isinstance(binary, Binary):
                    self._binaries.get(binary.kernel_hash, lambda binary=binary: binary)  # type: ignore[misc]
        hashes = {binary for work in works for binary in work.binaries if isinstance(binary, str)}
        missing = tuple(sorted(name for name in hashes if name not in self._binaries))
        return Missing(missing) if missing else None

    def _case(self, work: Work) -> tuple[Task, Case]:
        if work.task not in self._tasks:
            self._tasks[work.task] = load_task(work.task, Path.cwd(), check=False)
        task = self._tasks[work.task]
        return task, task.case(work.case)

    def _kernels(self, work: Work, copy: int = 0) -> list[LoadedKernel]:
        binaries = [
            binary if isinstance(binary, Binary) else self._binaries.get(binary, _unreachable) for binary in work.binaries
        ]
        check_plan(work.plan, binaries)
        return [self._kernel(kernel, binary, copy) for kernel, binary in zip(work.plan.kernels, binaries, strict=True)]

    def _kernel(self, kernel: Kernel, binary: Binary, copy: int) -> LoadedKernel:
        def load() -> LoadedKernel:
            self._counts["kernels loaded"] += 1
            return LoadedKernel(kernel, binary, self._device.index or 0)

        return self._loaded.get((binary.kernel_hash, copy), load)

    def _input(self, task: Task, case: Case, draw: Draw) -> Inputs:
        def make() -> Inputs:
            return make_inputs(task, case, draw.seed, self._device, draw.variation)

        return self._inputs.get((task.name, case.name, draw), make)

    def _arena(self, work: Work, seed: int, placement: int) -> Arena:
        task, case = self._case(work)

        def make() -> Arena:
            first = seed + 1 + 1_000_003 * placement
            return Arena(task, case, first, self._device, lambda number: self._input(task, case, Draw(number)))

        return self._arenas.get((work.task, work.case, seed, placement), make)

    def _arena_bytes(self, arena: Arena) -> int:
        """An estimate: sets are added as graphs need them."""
        return MAX_ARENA_BYTES if arena.task.mutates else 4 * self._l2_bytes + 2 * arena.case.bytes

    def _graph(self, work: Work, seed: int, placement: int, layout: Layout | None, copy: int = 0) -> TimedGraph:
        key = (work.task, work.case, seed, placement, work.plan_hash, layout, copy)
        if key in self._graphs:
            return self._graphs.get(key, _unreachable)
        if self._stopwatch is None:
            self._stopwatch = Stopwatch(self._device, self._l2_bytes)
        arena = self._arena(work, seed, placement)
        self._graphs.discard(lambda kept: kept[:4] in self._arenas)  # type: ignore[index]
        graph = TimedGraph(work.plan, self._kernels(work, copy), arena, self._stopwatch, layout)
        self._counts["graphs captured"] += 1
        if layout is None:  # an equal kernel may be asked for with the layout that this one found
            self._graphs.get((*key[:5], graph.layout, copy), lambda: graph)
        return self._graphs.get(key, lambda: graph)

    def _forget(self) -> None:
        self._graphs.discard()
        self._arenas.discard()
        self._inputs.discard()
        self._counts["inputs forgotten"] += 1


def _input_bytes(inputs: Inputs) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in inputs.tensors)


def _unreachable() -> Any:
    raise KeyError("the value was there a moment ago")
