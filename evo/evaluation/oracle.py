"""Computes what a kernel should return, in float64, and how far the reference itself is from it; keeps recent answers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from evo.evaluation.inputs import Inputs, make_grad_outputs, make_inputs, to_float64
from evo.tasks.base import Case, Task
from evo.tasks.draws import Draw

DEFAULT_CAPACITY_BYTES = 16 << 30


@dataclass(frozen=True)
class Outputs:
    """Everything a call produces, flattened: returned tensors, then mutated arguments, then gradients.

    Attributes:
        structure: How they were nested, e.g. ``(*, *)`` for a tuple of two tensors; mutated arguments and gradients follow
            as ``mutated[1]`` and ``gradients[2]``.
        tensors: The tensors in order.
    """

    structure: str
    tensors: tuple[torch.Tensor, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)


@dataclass(frozen=True)
class Expected:
    """The oracle's answer: `exact` from float64 inputs, `reference` in the task's own dtypes, same structure."""

    exact: Outputs
    reference: Outputs

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return self.exact.nbytes + self.reference.nbytes


def flatten_outputs(returned: Any, mutated: Sequence[torch.Tensor] = (), gradients: Sequence[torch.Tensor] = ()) -> Outputs:
    """Flattens what a call returned, the arguments it updated and the gradients it made.

    Raises:
        TypeError: `returned` holds something that is neither a tensor nor None nor a tuple, list or dict of them.
    """
    tensors: list[torch.Tensor] = []
    structure = _flatten(returned, tensors)
    if mutated:
        structure += f" mutated[{len(mutated)}]"
    if gradients:
        structure += f" gradients[{len(gradients)}]"
    return Outputs(structure, (*tensors, *mutated, *gradients))


def compute_outputs(task: Task, inputs: Inputs, grad_outputs: Sequence[torch.Tensor] | None = None) -> Outputs:
    """Runs the reference on inputs, which it may modify where the task mutates.

    Args:
        task: Whose reference to run.
        inputs: In native dtypes or in float64.
        grad_outputs: Gradients of the returned floating-point tensors, for tasks with a backward phase.
    """
    leading: tuple[Any, ...] = (inputs.parameters,) if task.form == "module" else ()
    with exact_matrix_products(), torch.set_grad_enabled(grad_outputs is not None):
        returned = task.reference(*leading, *inputs.arguments)
        mutated = [inputs.arguments[position].detach() for position in task.mutates]
        gradients: Sequence[torch.Tensor] = ()
        if grad_outputs is not None:
            wrt = inputs.differentiable()
            differentiable = [tensor for tensor in flatten_outputs(returned).tensors if tensor.requires_grad]
            grads = torch.autograd.grad(differentiable, wrt, list(grad_outputs), allow_unused=True)
            gradients = [torch.zeros_like(t) if g is None else g for g, t in zip(grads, wrt, strict=True)]
    flat = flatten_outputs(returned, mutated, gradients)
    return Outputs(flat.structure, tuple(tensor.detach() for tensor in flat.tensors))


class Oracle:
    """Answers for (task, case, seed) on one device, least recently used ones dropped. Not thread-safe.

    Args:
        device: Where the reference runs and the answers live.
        capacity_bytes: Bytes of answers kept; the newest answer is kept whatever its size.
    """

    def __init__(self, device: torch.device | str = "cpu", capacity_bytes: int = DEFAULT_CAPACITY_BYTES) -> None:
        self.device = torch.device(device)
        self._capacity_bytes = capacity_bytes
        self._answers: OrderedDict[tuple[str, Case, Draw], Expected] = OrderedDict()

    def expected(self, task: Task, case: Case, draw: Draw) -> Expected:
        """The answer for the inputs that `make_inputs` makes of the draw on this device."""
        key = (task.name, case, draw)
        if key in self._answers:
            self._answers.move_to_end(key)
            return self._answers[key]
        inputs = make_inputs(task, case, draw.seed, self.device, draw.variation)
        answer = self._compute(task, inputs, draw.seed)
        self._answers[key] = answer
        while len(self._answers) > 1 and self.cached_bytes > self._capacity_bytes:
            self._answers.popitem(last=False)
        return answer

    @property
    def cached_bytes(self) -> int:
        """Bytes of the answers kept at present."""
        return sum(answer.nbytes for answer in self._answers.values())

    def _compute(self, task: Task, inputs: Inputs, seed: int) -> Expected:
        grads = self._gradients(task, inputs, seed) if task.backward else None
        wide_grads = None if grads is None else [grad.to(torch.float64) for grad in grads]
        reference = compute_outputs(task, inputs.clone(), grads)
        if task.oracle == "reference":
            return Expected(reference, reference)
        return Expected(compute_outputs(task, to_float64(inputs), wide_grads), reference)

    def _gradients(self, task: Task, inputs: Inputs, seed: int) -> tuple[torch.Tensor, ...]:
        copies = inputs.clone()
        leading: tuple[Any, ...] = (copies.parameters,) if task.form == "module" else ()
        with torch.enable_grad():
            flat = flatten_outputs(task.reference(*leading, *copies.arguments))
        return make_grad_outputs(tuple(tensor.detach() for tensor in flat.tensors if tensor.requires_grad), seed)


@contextmanager
def exact_matrix_products() -> Iterator[None]:
    """No TF32 and no 16-bit partial sums while the reference runs: they would inflate its error and so the tolerance."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = (
        matmul.allow_tf32,
        cudnn.allow_tf32,
        matmul.allow_fp16_reduced_precision_reduction,
        matmul.allow_bf16_reduced_precision_reduction,
    )
    _set_reductions(matmul, cudnn, (False, False, False, False))
    try:
        yield
    finally:
        _set_reductions(matmul, cudnn, before)


def _set_reductions(matmul: Any, cudnn: Any, values: tuple[Any, Any, Any, Any]) -> None:
    matmul.allow_tf32, cudnn.allow_tf32 = values[:2]
    matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction = values[2:]


def _flatten(value: Any, tensors: list[torch.Tensor]) -> str:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return "*"
    if value is None:
        return "None"
    if isinstance(value, tuple):
        return "(" + ", ".join(_flatten(item, tensors) for item in value) + ")"
    if isinstance(value, list):
        return "[" + ", ".join(_flatten(item, tensors) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_flatten(item, tensors)}" for key, item in value.items()) + "}"
    raise TypeError(f"an output of type {type(value).__name__}; allowed: tensors, None, and tuples, lists, dicts of them")
