"""One checked run of a plan: in guarded, poisoned memory, several times in other surroundings, and what the differences say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch

from evo.evaluation.graphs import collect, prepare, same_bits, supply_gradients
from evo.evaluation.guarded import SURROUNDINGS, GuardedMemory, Surroundings
from evo.evaluation.inputs import Inputs
from evo.evaluation.runner import Execution, LoadedKernel
from evo.tasks.base import Task
from evo.tracing.plan import LaunchPlan

RACE_ROUNDS = 8
"""Further pairs of runs that must repeat what a difference showed before surroundings are blamed for it."""


class Differs(StrEnum):
    """Why repeats gave different bits: NOT, a RACE (equal memory gives different bits too), because of what lies BEYOND buffers, or
    because of UNDEFINED memory inside of them."""

    NOT = "not"
    RACE = "race"
    BEYOND = "beyond"
    UNDEFINED = "undefined"


@dataclass(frozen=True)
class Run:
    """One run: structure and tensors that came out, its memory, bytes supplied, and its sources afterwards (argument position or
    parameter name → tensor, byte view of its storage)."""

    structure: str
    outputs: tuple[torch.Tensor, ...]
    memory: GuardedMemory
    supplied: int
    sources: dict[int | str, tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Checker:
    """Runs one plan on one set of inputs on one device."""

    plan: LaunchPlan
    kernels: Sequence[LoadedKernel]
    task: Task
    inputs: Inputs
    seed: int
    device: torch.device

    def run(self, surroundings: Surroundings = SURROUNDINGS[0]) -> Run:
        """One run in memory of its own."""
        memory = GuardedMemory(self.device, surroundings)
        execution = Execution(self.plan, self.kernels, memory, self.device)
        with torch.no_grad():
            prepare(execution, self.inputs)
            supplied = memory.nbytes
            execution.run("forward")
            if self.task.backward:
                supply_gradients(execution, self.seed)
                execution.run("backward")
            structure, outputs = collect(execution, self.task, self.inputs)
        sources = {
            source.key: (execution.value(source.value), execution.bytes_of(self.plan.values[source.value].storage))
            for source in self.plan.sources
            if source.kind != "gradient"
        }
        return Run(structure, outputs, memory, supplied, sources)

    def repeats(self, count: int) -> tuple[list[Run], Differs]:
        """`count` runs in different surroundings, and why they differ where they do."""
        runs = [self.run(SURROUNDINGS[number % len(SURROUNDINGS)]) for number in range(max(1, count))]
        odd = next((number for number, run in enumerate(runs) if not _equal(runs[0], run)), None)
        if odd is None:
            return runs, Differs.NOT
        first, other = runs[0], SURROUNDINGS[odd % len(SURROUNDINGS)]
        # In turn, for one order of additions may come several times in a row where there are few of them.
        for _ in range(RACE_ROUNDS):
            if not (_equal(first, self.run()) and _equal(runs[odd], self.run(other))):
                return runs, Differs.RACE
        poisoned = self.run(Surroundings(SURROUNDINGS[0].bands, other.poison))
        return runs, Differs.BEYOND if _equal(first, poisoned) else Differs.UNDEFINED

    def changed(self, run: Run) -> tuple[int | str, ...]:
        """Sources that a run changed and the task does not update: elements, gaps between them, and what lies around them in their
        storage. Of arguments that are updated in place, only the elements may have changed."""
        given: dict[int | str, torch.Tensor] = {
            position: item.detach() for position, item in enumerate(self.inputs.arguments) if isinstance(item, torch.Tensor)
        }
        given.update({name: tensor.detach() for name, tensor in self.inputs.parameters.items()})
        poison = run.memory.surroundings.poison
        return tuple(
            key
            for key, pristine in given.items()
            if key in run.sources and not _intact(pristine, *run.sources[key], poison, key in self.task.mutates)
        )


def _equal(a: Run, b: Run) -> bool:
    return len(a.outputs) == len(b.outputs) and all(same_bits(x, y) for x, y in zip(a.outputs, b.outputs, strict=True))


def _intact(pristine: torch.Tensor, found: torch.Tensor, storage: torch.Tensor, poison: int, mutated: bool) -> bool:
    if pristine.stride() != found.stride():  # the plan asked for another layout: only the elements were supplied
        return mutated or same_bits(pristine, found)
    first, last = _span(found)
    size = found.element_size()
    start = int(found.storage_offset()) * size - _start(storage)
    around = (storage[:start], storage[start + (last - first) * size :])
    if any(bool((piece != poison).any()) for piece in around if piece.numel()):
        return False
    mine, theirs = _spanned(pristine), _spanned(found)
    if mutated:
        if not _overlaps(found):
            mine = mine.clone()
            mine.as_strided(found.shape, found.stride(), 0).copy_(found)
        else:
            return True
    return same_bits(mine, theirs)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    if not tensor.numel():
        return 0, 0
    return 0, 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _spanned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_strided((_span(tensor)[1],), (1,), tensor.storage_offset())


def _start(storage: torch.Tensor) -> int:
    return int(storage.storage_offset()) * storage.element_size()


def _overlaps(tensor: torch.Tensor) -> bool:
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return True
        reach += (size - 1) * stride
    return False
