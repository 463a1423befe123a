"""Timing on the device: calls of a plan over rotating sets of inputs, captured in a CUDA graph and timed as a whole.

Every input of a call is cold. The L2 cache is overwritten before each replay, and a graph calls each set once, or has so many sets that
twice the L2 cache passes before a set's next turn. The time of an empty graph is subtracted, and what is left is divided by the calls,
so the figure is the kernel's own also under 10 µs (what remains is the gap between two nodes of a graph, about a microsecond on recent
GPUs, which every call in a stream pays too). A kernel of 10 ms is called once per replay.

Candidate and baseline run in the same memory (an `Arena`): where buffers lie is then common to both, and no side is lucky. What a side left
there is no use to the other: before each replay, outside the timed region, all buffers that calls allocate are poisoned, and
arguments that are updated in place are restored, so every call works on pristine inputs and a call that wrote nothing is noticed.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch

from evo.evaluation.guarded import NAN
from evo.evaluation.inputs import Inputs, make_grad_outputs
from evo.evaluation.oracle import flatten_outputs
from evo.evaluation.runner import Execution, LoadedKernel, copy_span
from evo.tasks.base import Case, Task
from evo.tracing.plan import PHASES, Allocate, LaunchPlan

MIN_GRAPH_US = 150.0
"""Calls are repeated until a graph takes about this long; events resolve half a microsecond."""
MAX_CALLS = 400
MAX_ARENA_BYTES = 1 << 30
WARM_REPLAYS = 2
EMPTY_REPLAYS = 31
MIN_SCRUB_BYTES = 256 << 20
"""Overwriting less than this would end before the host has enqueued the graph."""
SHORTEST_US = 0.01


@dataclass(frozen=True)
class Layout:
    """How a graph calls its plan: over how many sets of inputs, and how often over all of them."""

    sets: int
    rounds: int

    @property
    def calls(self) -> int:
        """In one replay."""
        return self.sets * self.rounds


def layout_for(once_us: float, case_bytes: int, l2_bytes: int, *, once_per_set: bool) -> Layout:
    """Enough calls for the clock, enough sets for cold inputs.

    Args:
        once_us: A call takes about this long.
        case_bytes: That a call moves at least.
        l2_bytes: Of the device.
        once_per_set: Calls change their inputs, so each set serves one call per replay.
    """
    calls = max(1, min(MAX_CALLS, math.ceil(MIN_GRAPH_US / max(once_us, 0.1))))
    affordable = max(1, MAX_ARENA_BYTES // max(case_bytes, 1))
    if once_per_set:
        return Layout(min(calls, affordable), 1)
    evicting = -(-2 * l2_bytes // max(case_bytes, 1))
    sets = max(1, min(calls, evicting, affordable))
    return Layout(sets, -(-calls // sets))


class Arena:
    """Sets of inputs of one case and the memory that graphs on it share, at one place.

    Args:
        task, case: What is called.
        seed: Of the first set; others follow.
        device: Where.
        make: Makes (or remembers) the inputs of a seed.
    """

    def __init__(self, task: Task, case: Case, seed: int, device: torch.device, make: Callable[[int], Inputs]) -> None:
        self.task = task
        self.case = case
        self.seed = seed
        self.device = device
        self._make = make
        self._blocks: list[dict[Hashable, torch.Tensor]] = []

    def inputs(self, number: int) -> Inputs:
        """The pristine inputs of a set; not in the arena's memory."""
        return self._make(self.seed + number)

    def memory(self, number: int, plan: LaunchPlan) -> SetMemory:
        """The memory of a set, for one execution of a plan."""
        while len(self._blocks) <= number:
            self._blocks.append({})
        return SetMemory(self.device, self._blocks[number], plan)


class SetMemory:
    """Hands the blocks of a set to one execution, by what they are for, and adds what is missing.

    Shared are sources (the same bytes for every plan) and what calls allocate (poisoned before each replay), the n-th of a size. What a
    plan prepares once is its own.
    """

    def __init__(self, device: torch.device, blocks: dict[Hashable, torch.Tensor], plan: LaunchPlan) -> None:
        self._device = device
        self._blocks = blocks
        self._roles: dict[int, Hashable] = {}
        numbers: Counter[int] = Counter()
        for index in undefined_storages(plan, PHASES[1:]):
            size = plan.storages[index]
            self._roles[index] = ("scratch", size, numbers[size])
            numbers[size] += 1
        for source in plan.sources:
            value = plan.values[source.value]
            self._roles[value.storage] = (source.kind, source.key, plan.storages[value.storage], value.offset)

    def allocate(self, nbytes: int, index: int) -> tuple[torch.UntypedStorage, int]:
        """See `evo.evaluation.runner.Memory`."""
        role = self._roles.get(index)
        block = None if role is None else self._blocks.get(role)
        if block is None:
            block = torch.empty(max(nbytes, 1), dtype=torch.uint8, device=self._device)
            if role is not None:
                self._blocks[role] = block
        return block.untyped_storage(), 0


def undefined_storages(plan: LaunchPlan, phases: Sequence[str]) -> list[int]:
    """Storages that these phases allocate, in order."""
    return sorted({step.storage for phase in phases for step in plan.steps.get(phase, ()) if isinstance(step, Allocate)})


class Stopwatch:
    """Times replays; one per process.

    Args:
        device: Where.
        l2_bytes: Of the device.
    """

    def __init__(self, device: torch.device, l2_bytes: int) -> None:
        self.l2_bytes = l2_bytes
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._scrub = torch.empty(max(2 * l2_bytes, MIN_SCRUB_BYTES), dtype=torch.uint8, device=device)
        self._start, self._end = event(), event()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the graph is empty
            empty = self.capture(lambda: None)
        self.empty_us = 0.0
        self.empty_us = sorted(self.replay_us(empty) for _ in range(EMPTY_REPLAYS))[EMPTY_REPLAYS // 2]

    def capture(self, calls: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """A graph of what `calls` launches. Memory stays cached, unlike in `torch.cuda.graph`, which empties torch's cache each time."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream), torch.no_grad():
            graph.capture_begin()
            try:
                calls()
            finally:
                graph.capture_end()
        return graph

    def replay_us(self, graph: torch.cuda.CUDAGraph) -> float:
        """Microseconds of one replay after the L2 cache was overwritten, without what an empty graph takes."""
        self._scrub.zero_()
        self._start.record()
        graph.replay()
        self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) * 1e3 - self.empty_us

    def once_us(self, call: Callable[[], object]) -> float:
        """About how long a call takes, in a graph of its own: launched from here, a short one would wait for the host."""
        call()
        graph = self.capture(call)
        return min(self.replay_us(graph) for _ in range(3))


class TimedGraph:
    """Calls of one plan in an arena.

    Args:
        plan: What is called.
        kernels: Its kernels, loaded.
        arena: Where.
        stopwatch: Of this process.
        layout: How it is called; None finds one for this plan.
    """

    def __init__(
        self, plan: LaunchPlan, kernels: Sequence[LoadedKernel], arena: Arena, stopwatch: Stopwatch, layout: Layout | None
    ) -> None:
        self._plan, self._kernels, self._arena, self._stopwatch = plan, kernels, arena, stopwatch
        task = arena.task
        self._phases = ("forward", "backward") if task.backward else ("forward",)
        first = self._execution(0)
        if layout is None:
            once_us = stopwatch.once_us(lambda: self._call(first))
            layout = layout_for(once_us, arena.case.bytes, stopwatch.l2_bytes, once_per_set=bool(task.mutates))
        self.layout = layout
        self.executions = [first, *(self._execution(number) for number in range(1, layout.sets))]
        for execution in self.executions:
            self._call(execution)  # whatever is made on the first call is not captured
        undefined = undefined_storages(plan, self._phases)
        sources = {source.key: source.value for source in plan.sources if source.kind == "argument"}
        restored = [(position, sources[position]) for position in task.mutates if position in sources]
        self._pristine = [self._kept(number, [position for position, _ in restored]) for number in range(layout.sets)]

        def reset() -> None:
            for execution, pristine in zip(self.executions, self._pristine, strict=True):
                for (_, value), tensor in zip(restored, pristine, strict=True):
                    copy_span(execution.value(value), tensor)
                for storage in undefined:
                    execution.bytes_of(storage).fill_(NAN)

        def calls() -> None:
            for _ in range(layout.rounds):
                for execution in self.executions:
                    self._call(execution)

        self._reset = stopwatch.capture(reset) if undefined or restored else None
        self._graph = stopwatch.capture(calls)
        for _ in range(WARM_REPLAYS):
            self.time_us()

    def time_us(self) -> float:
        """Microseconds per call of one replay, on pristine inputs and poisoned outputs."""
        if self._reset is not None:
            self._reset.replay()
        return max(SHORTEST_US, self._stopwatch.replay_us(self._graph) / self.layout.calls)

    def outputs(self, number: int) -> tuple[torch.Tensor, ...]:
        """Copies of what the newest replay left in a set: outputs, arguments updated in place, gradients."""
        return tuple(item.clone() for item in collect(self.executions[number], self._arena.task, self._arena.inputs(number))[1])

    def _execution(self, number: int) -> Execution:
        arena = self._arena
        inputs = arena.inputs(number)
        execution = Execution(self._plan, self._kernels, arena.memory(number, self._plan), arena.device, reuses=True)
        with torch.no_grad():
            prepare(execution, inputs)
            if arena.task.backward:
                execution.run("forward")
                supply_gradients(execution, arena.seed + number)
        return execution

    def _kept(self, number: int, positions: Sequence[int]) -> list[torch.Tensor]:
        inputs = self._arena.inputs(number) if positions else None
        return [] if inputs is None else [inputs.arguments[position].detach() for position in positions]

    def _call(self, execution: Execution) -> None:
        with torch.no_grad():
            for phase in self._phases:
                execution.run(phase)


def prepare(execution: Execution, inputs: Inputs) -> None:
    """Supplies parameters and arguments and runs what runs once."""
    execution.supply("parameter", inputs.parameters)
    execution.run("prepare")
    execution.supply("argument", tensors_of(inputs))


def supply_gradients(execution: Execution, seed: int) -> None:
    """Supplies the gradients of the outputs that the forward phase left."""
    tensors = flatten_outputs(execution.outputs()).tensors
    places = execution.plan.gradient_places
    gradients = make_grad_outputs(tuple(tensors[place] for place in places), seed)
    execution.supply("gradient", dict(zip(places, gradients, strict=True)))


def collect(execution: Execution, task: Task, inputs: Inputs) -> tuple[str, tuple[torch.Tensor, ...]]:
    """Structure and tensors of everything a call produced, in the order that the judge expects."""
    gradients: list[torch.Tensor] = []
    if task.backward:
        made = zip(execution.gradients(), inputs.differentiable(), strict=True)
        gradients = [torch.zeros_like(wanted) if gradient is None else gradient for gradient, wanted in made]
    positions = {source.key: source.value for source in execution.plan.sources if source.kind == "argument"}
    mutated = [execution.value(positions[position]) for position in task.mutates]
    flat = flatten_outputs(execution.outputs(), mutated, gradients)
    return flat.structure, flat.tensors


def tensors_of(inputs: Inputs) -> dict[int | str, torch.Tensor]:
    """The tensor arguments by position."""
    return {position: item.detach() for position, item in enumerate(inputs.arguments) if isinstance(item, torch.Tensor)}


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have equal bits, NaNs included."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a, b) or torch.equal(_bits(a), _bits(b))


def event() -> torch.cuda.Event:
    """One that can be timed."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)
