"""What a host lends one candidate process for one case: input sets under guard bands, and room for outputs; and what came of it.

The host keeps a copy of every byte it lent. Outputs are read from a snapshot in the host's own memory, by descriptions that come from the
candidate's process and are checked like any hostile data: a description says where in its own slot an output lies, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from evo.evaluation.aliasing import Sharing, tensor_sharing
from evo.evaluation.hosted_memory import PATTERN, SharedBlock, Slot, aligned, lay_out, span, storage_bytes
from evo.evaluation.inputs import Inputs, differentiable_places, make_grad_outputs, make_inputs
from evo.evaluation.oracle import Outputs, flatten_outputs
from evo.tasks.base import Case, Task
from evo.tasks.draws import Draw
from evo.tracing.plan import VALUE_DTYPES

SAMPLE_BYTES = 256
SAMPLES = 512
"""Pieces of the outputs that are copied before the clock is read, chosen at random for every timed request."""
MAX_EXPANSION = 16
"""How much larger than its memory an expanded output may be: comparing it costs what it seems to hold."""
_MAX_RANK = 16
_MAX_NESTING = 16
_MAX_OUTPUTS = 1024


class InvalidAnswer(Exception):
    """A description of outputs that no honest process gives."""


class Lending:
    """Memory for `count` input sets of a case, for one process.

    Args:
        task, case: Whose inputs.
        count: Sets.
        device: Where inputs are made.
        by_ipc: See `SharedBlock`.

    Attributes:
        sharing: What the reference's outputs share memory with.
    """

    def __init__(self, task: Task, case: Case, count: int, device: str, *, by_ipc: bool) -> None:
        self._task, self._case, self._device = task, case, device
        sample = make_inputs(task, case, 0, device)
        outputs, self.sharing = _reference_outputs(task, sample)
        self._places = differentiable_places(outputs) if task.backward else ()
        seeds = make_grad_outputs(tuple(outputs[place].detach() for place in self._places), 0)
        wanted = list(sample.differentiable()) if task.backward else []
        produced = [*outputs, *(sample.arguments[position] for position in task.mutates), *wanted]
        # Twice what a reference produces, so that outputs with gaps between elements reach the judge, who knows what to say of them.
        self.slot_bytes = sum(2 * aligned(span(item.shape, item.stride()) * item.element_size()) for item in produced) + 4096
        self._wanted = len(wanted)
        self._slots: list[list[Slot]] = []
        self._ranges: list[tuple[int, int]] = []
        self._sample, end = sample, 0
        for _ in range(count):
            slots, last = lay_out((*sample.tensors, *seeds), end)
            self._slots.append(slots)
            self._ranges.append((end, last))
            end = last
        self.inputs = SharedBlock(end, by_ipc=by_ipc)
        self.outputs = SharedBlock(self.slot_bytes * count, by_ipc=by_ipc)
        self._kept = torch.full_like(self.inputs.tensor, PATTERN)
        self.inputs.tensor.copy_(self._kept)

    @property
    def count(self) -> int:
        """Input sets."""
        return len(self._slots)

    def request(self) -> dict[str, Any]:
        """What `hosted_child` is told."""
        names = list(self._task.parameters)
        arguments = self._sample.arguments
        sets = []
        for slots, limits in zip(self._slots, self._ranges, strict=True):
            left = iter(slots)
            parameters = {name: next(left).to_json() for name in names}
            given = [next(left).to_json() if isinstance(item, torch.Tensor) else item for item in arguments]
            gradients = {"gradients": [slot.to_json() for slot in left], "places": list(self._places)}
            sets.append({"arguments": given, "parameters": parameters, **gradients, "range": list(limits)})
        return {"sets": sets, "slot_bytes": self.slot_bytes, "blocks": [self.inputs.handle, self.outputs.handle]}

    def fill(self, draws: Sequence[Draw], *, parameters_only: bool = False) -> None:
        """Makes the inputs of each draw, set by set; or, of a module, what it prepares its weights from and no more."""
        for slots, draw in zip(self._slots, draws, strict=True):
            inputs = make_inputs(self._task, self._case, draw.seed, self._device, draw.variation)
            seeds = self._output_gradients(inputs, draw.seed)
            tensors = tuple(inputs.parameters.values()) if parameters_only else (*inputs.tensors, *seeds)
            for slot, tensor in zip(slots[: len(tensors)], tensors, strict=True):
                self._kept[slot.start : slot.start + slot.nbytes].copy_(storage_bytes(tensor))
        self.restore()

    def restore(self) -> None:
        """Lends what was filled in last, whatever became of it; outputs are poisoned."""
        self.inputs.tensor.copy_(self._kept)
        self.outputs.tensor.fill_(0xFF)
        self._synchronise()

    def changed(self) -> tuple[int, list[int | str]]:
        """Guard bytes that were written to, and arguments (by position) and parameters (by name) that changed and must not."""
        different = self.inputs.tensor != self._kept
        if not bool(different.any()):
            return 0, []
        names: list[int | str] = [*self._task.parameters]
        names += [position for position, item in enumerate(self._sample.arguments) if isinstance(item, torch.Tensor)]
        found: list[int | str] = []
        for slots in self._slots:
            for name, slot in zip((*names, *("gradient" for _ in slots[len(names) :])), slots, strict=True):
                part = different[slot.start : slot.start + slot.nbytes]
                if name not in self._task.mutates and bool(part.any()):
                    found.append(name)
                part.zero_()
        return int(different.sum()), found

    def sample(self, generator: torch.Generator) -> torch.Tensor:
        """Which pieces of the outputs to look at first; see `SAMPLES`."""
        device = self.outputs.tensor.device
        pieces = self.outputs.nbytes // SAMPLE_BYTES
        return torch.randint(pieces, (min(SAMPLES, pieces),), generator=generator).to(device)

    def pieces(self, chosen: torch.Tensor, outputs: torch.Tensor | None = None) -> torch.Tensor:
        """Copies of the chosen pieces, of the lent memory or of a snapshot; done when this returns."""
        source = self.outputs.tensor if outputs is None else outputs
        whole = source.numel() // SAMPLE_BYTES * SAMPLE_BYTES
        found = source[:whole].view(-1, SAMPLE_BYTES)[chosen]
        self._synchronise()
        return found

    def snapshot(self) -> torch.Tensor:
        """All outputs as they are now, in the host's own memory."""
        copy = self.outputs.tensor.clone()
        self._synchronise()
        return copy

    def read(
        self, answer: Mapping[str, Any], numbers: Sequence[int], snapshot: torch.Tensor, *, gradients: bool = True
    ) -> dict[int, Outputs]:
        """The outputs of sets that were run in this order, with the gradients where the task has a backward phase.

        Raises:
            InvalidAnswer: The descriptions are not what an honest process sends.
        """
        results = _list(answer.get("results"))
        if len(results) != len(numbers):
            raise InvalidAnswer(f"outputs of {len(results)} calls; {len(numbers)} were asked for")
        wanted = self._wanted if gradients else 0
        return {number: self._read(result, number, snapshot, wanted) for number, result in zip(numbers, results, strict=True)}

    def close(self) -> None:
        """Frees the memory; the process it was lent to must have ended. Idempotent."""
        self.inputs.close()
        self.outputs.close()

    def _read(self, result: Any, number: int, snapshot: torch.Tensor, wanted: int) -> Outputs:
        parts = _list(result)
        if len(parts) != 2:
            raise InvalidAnswer("outputs without a description")
        at, end = number * self.slot_bytes, (number + 1) * self.slot_bytes
        tensors = []
        for described in _list(parts[1]):
            dtype, shape, strides = _tensor(described)
            nbytes = span(shape, strides) * VALUE_DTYPES[dtype]
            if nbytes > end - at or math.prod(shape) * VALUE_DTYPES[dtype] > MAX_EXPANSION * self.slot_bytes:
                raise InvalidAnswer(f"outputs of more than {self.slot_bytes} bytes")
            flat = snapshot[at : at + nbytes].view(getattr(torch, dtype))
            tensors.append(flat.as_strided(shape, strides, flat.storage_offset()))
            at += aligned(nbytes)
        own = len(tensors) - len(self._task.mutates) - wanted
        if own < 0:
            raise InvalidAnswer(f"{len(tensors)} outputs, updated arguments and gradients")
        left = iter(tensors[:own])
        returned = _nested(parts[0], left, 0)
        if next(left, None) is not None:
            raise InvalidAnswer("more outputs than are described")
        mutated, gradients = tensors[own : len(tensors) - wanted], tensors[len(tensors) - wanted :]
        return flatten_outputs(returned, mutated, gradients)

    def _output_gradients(self, inputs: Inputs, seed: int) -> tuple[torch.Tensor, ...]:
        """What the oracle sends back through outputs that have a gradient; see `evo.evaluation.oracle`."""
        if not self._places:
            return ()
        outputs, _ = _reference_outputs(self._task, inputs)
        return make_grad_outputs(tuple(outputs[place].detach() for place in self._places), seed)

    def _synchronise(self) -> None:
        if self._device != "cpu":
            torch.cuda.synchronize()


def _reference_outputs(task: Task, inputs: Inputs) -> tuple[tuple[torch.Tensor, ...], Sharing]:
    """The flattened tensors that the reference returns, and what memory they share."""
    copies = inputs.clone()
    leading: tuple[Any, ...] = (copies.parameters,) if task.form == "module" else ()
    with torch.set_grad_enabled(task.backward):
        tensors = flatten_outputs(task.reference(*leading, *copies.arguments)).tensors
    return tensors, tensor_sharing(tensors, copies)


def _nested(node: Any, tensors: Any, depth: int) -> Any:
    if node is None:
        return None
    if node == "*":
        found = next(tensors, None)
        if found is None:
            raise InvalidAnswer("fewer outputs than are described")
        return found
    if depth > _MAX_NESTING or not isinstance(node, dict) or len(node) != 1:
        raise InvalidAnswer("an output that is no tensor and no container")
    ((kind, items),) = node.items()
    if kind == "dict":
        pairs = [_list(item) for item in _list(items)]
        if any(len(pair) != 2 or not isinstance(pair[0], str) for pair in pairs):
            raise InvalidAnswer("a dict of outputs")
        return {key: _nested(item, tensors, depth + 1) for key, item in pairs}
    if kind not in ("tuple", "list"):
        raise InvalidAnswer("an output of an unknown kind")
    found = [_nested(item, tensors, depth + 1) for item in _list(items)]
    return tuple(found) if kind == "tuple" else found


def _tensor(node: Any) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    if not isinstance(node, dict) or not isinstance(node.get("dtype"), str) or node["dtype"] not in VALUE_DTYPES:
        raise InvalidAnswer("a tensor without a known dtype")
    shape, strides = _sizes(node.get("shape")), _sizes(node.get("strides"))
    if len(shape) != len(strides):
        raise InvalidAnswer("a tensor's shape and strides")
    return node["dtype"], shape, strides


def _sizes(value: Any) -> tuple[int, ...]:
    items = _list(value)
    if len(items) > _MAX_RANK or any(type(item) is not int or not 0 <= item < 2**40 for item in items):
        raise InvalidAnswer("a tensor's sizes")
    return tuple(items)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) > _MAX_OUTPUTS:
        raise InvalidAnswer(f"a list of at most {_MAX_OUTPUTS} expected")
    return value
