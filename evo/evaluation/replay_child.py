"""The replay process: trusted, warm, one per GPU. It runs plans from binaries on inputs it draws from a secret seed, and times them."""

from __future__ import annotations

import pickle
import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing

from evo.evaluation.guarded import GuardedMemory
from evo.evaluation.inputs import Inputs, make_grad_outputs, make_inputs
from evo.evaluation.oracle import flatten_outputs
from evo.evaluation.runner import Execution, LoadedKernel, PlainMemory, load_plan, set_scratch_allocator
from evo.tasks.base import Case, Task
from evo.tasks.draws import Draw
from evo.tasks.loading import load_task
from evo.tracing.compiler import Binary
from evo.tracing.plan import LaunchPlan

MAX_SETS = 32
WARM_REPLAYS = 3
MIN_GRAPH_US = 150.0
MAX_CALLS = 400


@dataclass(frozen=True)
class Work:
    """A plan with its binaries, on one case of a task (task as a reference that `load_task` takes)."""

    task: str
    case: str
    plan: LaunchPlan
    binaries: tuple[Binary, ...]


@dataclass(frozen=True)
class Ran:
    """What a checked run left: outputs as pickled tensors with their structure, and what was noticed about memory (inputs by the
    position of an argument or the name of a parameter)."""

    structure: str
    outputs: bytes
    violations: int
    changed_inputs: tuple[int | str, ...]
    repeats_equal: bool
    peak_bytes: int


class ReplayProcess:
    """Served by `evo.evaluation.worker`."""

    def __init__(self) -> None:
        self._device = torch.device("cuda:0")
        torch.cuda.init()  # type: ignore[no-untyped-call]
        set_scratch_allocator(self._device)
        self._tasks: dict[str, Task] = {}
        self._loaded: OrderedDict[str, list[LoadedKernel]] = OrderedDict()
        self._inputs: OrderedDict[tuple[str, str, int], list[Inputs]] = OrderedDict()
        self._kept: list[Any] = []
        self._graphs: OrderedDict[str, _Graph] = OrderedDict()
        self._l2_bytes = int(torch.cuda.get_device_properties(0).L2_cache_size)
        self._scrub = torch.empty(2 * self._l2_bytes, dtype=torch.uint8, device=self._device)

    def describe(self) -> dict[str, Any]:
        """Device name, compute capability, multiprocessors."""
        properties = torch.cuda.get_device_properties(0)
        return {
            "name": properties.name,
            "capability": (properties.major, properties.minor),
            "sms": properties.multi_processor_count,
        }

    def probe(self) -> bytes:
        """A tensor of three ones by CUDA IPC."""
        self._kept = [torch.ones(3, device=self._device)]
        return bytes(ForkingPickler.dumps(self._kept[0]))

    def health(self) -> bool:
        """A small product with a known answer."""
        a = torch.arange(64 * 64, device=self._device, dtype=torch.float32).reshape(64, 64)
        return bool(torch.equal(a @ torch.eye(64, device=self._device), a))

    def check(self, work: Work, draw: Draw, by_ipc: bool, repeats: int) -> Ran:
        """Runs a plan in guarded, poisoned memory on fresh inputs, `repeats` times, and hands the first outputs on."""
        task, case = self._case(work)
        inputs = make_inputs(task, case, draw.seed, self._device, draw.variation)
        kernels = self._kernels(work)
        runs = [self._guarded(work.plan, kernels, task, inputs, draw.seed) for _ in range(max(1, repeats))]
        torch.cuda.synchronize()
        first = runs[0]
        equal = all(_same_bits(a, b) for run in runs[1:] for a, b in zip(first.outputs, run.outputs, strict=True))
        self._kept = list(first.outputs)
        if by_ipc:
            data = bytes(ForkingPickler.dumps([item.detach() for item in first.outputs]))
        else:
            data = pickle.dumps([item.cpu() for item in first.outputs])
        changed = self._changed(task, inputs, runs)
        violations = sum(run.memory.violations() for run in runs)
        return Ran(first.structure, data, violations, changed, equal, first.memory.nbytes - first.supplied)

    def release(self) -> None:
        """Drops outputs that were handed on and freed memory that nobody uses."""
        self._kept = []
        torch.cuda.empty_cache()

    def latency(self, work: Work, seed: int, replays: int) -> float:
        """Median device latency in microseconds, from CUDA graphs over rotating inputs."""
        graph = self._graph(work, seed)
        return sorted(graph.time_us() for _ in range(replays))[replays // 2]

    def compare(
        self, candidate: Work, baseline: Work, seed: int, pairs: int, order_seed: int, incumbent: float
    ) -> tuple[list[float], list[float], bool]:
        """Times both in random order, pair by pair.

        Returns:
            Latencies of candidate and baseline, microseconds, per pair, and whether the outputs of one of the candidate's timed calls,
            chosen afterwards, equal those of a checked run on the same inputs (not asked where arguments are updated in
            place: timed calls repeat on them). After 8 pairs it stops where even the best pair is below `incumbent`.
        """
        ours, theirs = self._graph(candidate, seed), self._graph(baseline, seed)
        order = random.Random(order_seed)
        mine: list[float] = []
        other: list[float] = []
        for number in range(pairs):
            first = order.random() < 0.5
            for is_candidate in (first, not first):
                (mine if is_candidate else other).append((ours if is_candidate else theirs).time_us())
            if number == 7 and incumbent and max(b / a for a, b in zip(mine, other, strict=True)) < incumbent:
                break
        return mine, other, self._as_checked(candidate, ours, order, seed)

    def _as_checked(self, work: Work, graph: _Graph, order: random.Random, seed: int) -> bool:
        task, _ = self._case(work)
        if task.mutates or task.backward:
            return True
        torch.cuda.synchronize()
        number = order.randrange(len(graph.executions))
        checked = self._guarded(work.plan, self._kernels(work), task, graph.sets[number], seed)
        timed = flatten_outputs(graph.executions[number].outputs()).tensors
        return len(timed) == len(checked.outputs) and all(_same_bits(a, b) for a, b in zip(timed, checked.outputs, strict=True))

    def _case(self, work: Work) -> tuple[Task, Case]:
        if work.task not in self._tasks:
            self._tasks[work.task] = load_task(work.task, Path.cwd())
        task = self._tasks[work.task]
        return task, task.case(work.case)

    def _kernels(self, work: Work) -> list[LoadedKernel]:
        key = work.plan.plan_hash
        if key not in self._loaded:
            self._loaded[key] = load_plan(work.plan, work.binaries, self._device)
            while len(self._loaded) > 64:
                self._loaded.popitem(last=False)
        self._loaded.move_to_end(key)
        return self._loaded[key]

    def _guarded(self, plan: LaunchPlan, kernels: Sequence[LoadedKernel], task: Task, inputs: Inputs, seed: int) -> _Run:
        memory = GuardedMemory(self._device)
        execution = Execution(plan, kernels, memory, self._device)
        with torch.no_grad():
            execution.supply("parameter", inputs.parameters)
            execution.run("prepare")
            execution.supply("argument", _tensors(inputs))
            supplied = memory.nbytes
            execution.run("forward")
            returned = execution.outputs()
            gradients: list[torch.Tensor] = []
            if task.backward:
                tensors = flatten_outputs(returned).tensors
                seeds = make_grad_outputs(tuple(item for item in tensors if item.is_floating_point()), seed)
                places = [index for index, item in enumerate(tensors) if item.is_floating_point()]
                execution.supply("gradient", dict(zip(places, seeds, strict=True)))
                execution.run("backward")
                wanted = [item for item in inputs.arguments if isinstance(item, torch.Tensor) and item.requires_grad]
                made = execution.gradients()
                gradients = [torch.zeros_like(w) if g is None else g for g, w in zip(made, wanted, strict=True)]
        positions = {source.key: source.value for source in plan.sources if source.kind == "argument"}
        mutated = [execution.value(positions[position]) for position in task.mutates]
        flat = flatten_outputs(returned, mutated, gradients)
        after = {source.key: execution.value(source.value) for source in plan.sources if source.kind != "gradient"}
        return _Run(flat.structure, flat.tensors, memory, supplied, after)

    def _changed(self, task: Task, inputs: Inputs, runs: Sequence[_Run]) -> tuple[int | str, ...]:
        before = _tensors(inputs)
        before.update(inputs.parameters.items())
        return tuple(
            key
            for key, tensor in before.items()
            if key not in task.mutates and any(not _same_bits(tensor.detach(), run.inputs[key]) for run in runs)
        )

    def _graph(self, work: Work, seed: int) -> _Graph:
        key = f"{work.case}:{seed}:{work.plan.plan_hash}"
        if key not in self._graphs:
            task, case = self._case(work)
            self._graphs[key] = _Graph(
                work.plan, self._kernels(work), task, self._sets(work, task, case, seed), self._device, self._scrub
            )
            while len(self._graphs) > 4:
                self._graphs.popitem(last=False)
        self._graphs.move_to_end(key)
        return self._graphs[key]

    def _sets(self, work: Work, task: Task, case: Case, seed: int) -> list[Inputs]:
        """Input sets that together exceed twice the L2 cache, so that every call in a graph finds its inputs in device memory. Of small
        cases `MAX_SETS` do not exceed it: all but the first round are then served by the cache, for both sides alike."""
        key = (work.task, work.case, seed)
        if key not in self._inputs:
            count = max(1, min(MAX_SETS, -(-2 * self._l2_bytes // max(case.bytes, 1))))
            self._inputs[key] = [make_inputs(task, case, seed + 1 + index, self._device) for index in range(count)]
            while len(self._inputs) > 8:
                self._inputs.popitem(last=False)
        self._inputs.move_to_end(key)
        return self._inputs[key]


@dataclass
class _Run:
    structure: str
    outputs: tuple[torch.Tensor, ...]
    memory: GuardedMemory
    supplied: int
    inputs: dict[int | str, torch.Tensor]


class _Graph:
    """Calls of one plan over rotating input sets in a CUDA graph, timed as a whole and divided by the number of calls."""

    def __init__(
        self,
        plan: LaunchPlan,
        kernels: Sequence[LoadedKernel],
        task: Task,
        sets: Sequence[Inputs],
        device: torch.device,
        scrub: torch.Tensor,
    ) -> None:
        self._scrub = scrub
        self._start, self._end = _event(), _event()
        executions = []
        with torch.no_grad():
            for inputs in sets:
                execution = Execution(plan, kernels, PlainMemory(device), device)
                execution.supply("parameter", inputs.parameters)
                execution.run("prepare")
                execution.supply("argument", _tensors(inputs))
                executions.append(execution)
        self.executions = executions
        self.sets = sets
        self._backward = task.backward
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), torch.no_grad():
            for execution in executions:
                self._call(execution)
            self._start.record(stream)
            self._call(executions[0])
            self._end.record(stream)
        torch.cuda.synchronize()
        once_us = max(self._start.elapsed_time(self._end) * 1e3, 2.0)
        rounds = max(1, min(MAX_CALLS // len(executions), round(MIN_GRAPH_US / (once_us * len(executions)))))
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph), torch.no_grad():
            for _ in range(rounds):
                for execution in executions:
                    self._call(execution)
        self._calls = rounds * len(executions)
        for _ in range(WARM_REPLAYS):
            self._graph.replay()
        torch.cuda.synchronize()

    def time_us(self) -> float:
        """Microseconds per call of one replay, after the L2 cache was overwritten."""
        self._scrub.zero_()
        self._start.record()
        self._graph.replay()
        self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end) * 1e3 / self._calls)

    def _call(self, execution: Execution) -> None:
        execution.run("forward")
        if self._backward:
            tensors = flatten_outputs(execution.outputs()).tensors
            floats = {index: item for index, item in enumerate(tensors) if item.is_floating_point()}
            if not any(
                source.kind == "gradient" and execution.plan.values[source.value].storage in execution.storages
                for source in execution.plan.sources
            ):
                execution.supply("gradient", {key: torch.ones_like(item) for key, item in floats.items()})
            execution.run("backward")


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _tensors(inputs: Inputs) -> dict[int | str, torch.Tensor]:
    return {position: item for position, item in enumerate(inputs.arguments) if isinstance(item, torch.Tensor)}


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a, b) or torch.equal(_bits(a), _bits(b))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)
