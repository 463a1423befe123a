"""Computes what a kernel should return, in float64, and how far the reference itself is from it; keeps recent answers."""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from evo.errors import TaskError
from evo.evaluation.inputs import Inputs, differentiable_places, make_grad_outputs, make_inputs, to_float64
from evo.evaluation.rounding import NATIVE, Perturbing, Recording, as_wide_as
from evo.evaluation.tiling import comparable, errors, row_norms, shown, tile_size, tiles
from evo.tasks.base import JUDGED_DTYPES, Case, Task, TensorSpec
from evo.tasks.draws import Draw

DEFAULT_CAPACITY_BYTES = 16 << 30
FEW_ELEMENTS = 32
"""Of an output: too few to tell from one call how exact the reference is."""
FURTHER_DRAWS = 7
"""So many, and the one that is judged, tell the standard deviation of the reference's error on outputs of few elements."""
ROUNDINGS = 4
"""So many computations that round by chance tell how far rounding moves an output."""
MANY_ROUNDINGS = 12
"""So many where it is a near thing: of a hundred rows, four computations are all lucky in some."""
LARGE_ELEMENTS = 1 << 24
"""Inputs with more are not drawn again: sums that long have a wide floor."""
_STEP = 0x9E3779B97F4B
_SEEDS = 1 << 48


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
class Rounding:
    """What some computations that round by chance (`evo.evaluation.rounding`) show of one output, tile by tile, [tiles] in
    float64: the `deviation` of float64 ones that round as float32 does, which is how far rounding is amplified; and of the reference in
    its own dtypes, which may be exact by luck once, but not every time, the largest `error` norm, and the largest error of an
    element relative to its raised magnitude, `shown`."""

    deviation: torch.Tensor
    error: torch.Tensor
    shown: torch.Tensor


@dataclass(frozen=True)
class Expected:
    """The oracle's answer: `exact` from float64 inputs, `reference` in the task's own dtypes, same structure.

    `spread`, if given, tells of each output of few elements the standard deviation of the reference's error at each element
    (float64, flat, real and imaginary parts apart); None for other outputs. `rounding`, if given, tells of each output what rounding by
    chance does to it, from so many computations as `roundings` says; None for integers.
    """

    exact: Outputs
    reference: Outputs
    spread: tuple[torch.Tensor | None, ...] = ()
    rounding: tuple[Rounding | None, ...] = ()
    roundings: int = 0

    def rounding_of(self, index: int) -> Rounding | None:
        """Of one output, None where it was not measured."""
        return self.rounding[index] if self.rounding else None

    def spread_of(self, index: int) -> torch.Tensor | None:
        """Of one output, None where it was not measured."""
        return self.spread[index] if self.spread else None

    @property
    def nbytes(self) -> int:
        """Bytes of all outputs."""
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
    with matrix_products(task.tolerance.products == "tf32"), torch.set_grad_enabled(grad_outputs is not None):
        returned = task.reference(*leading, *inputs.arguments)
        mutated = [inputs.arguments[position].detach() for position in task.mutates]
        gradients: Sequence[torch.Tensor] = ()
        if grad_outputs is not None:
            wrt = inputs.differentiable()
            flat = flatten_outputs(returned)
            differentiable = [flat.tensors[place] for place in differentiable_places(flat.tensors)]
            grads = torch.autograd.grad(differentiable, wrt, list(grad_outputs), allow_unused=True)
            gradients = [torch.zeros_like(t) if g is None else g for g, t in zip(grads, wrt, strict=True)]
    flat = flatten_outputs(returned, mutated, gradients)
    return Outputs(flat.structure, tuple(tensor.detach() for tensor in flat.tensors))


class Oracle:
    """Answers for (task, case, draw) on one device, least recently used ones dropped. Not thread-safe.

    Args:
        device: Where the reference runs and the answers live.
        capacity_bytes: Bytes of answers kept; an answer that is larger by itself is not.
    """

    def __init__(self, device: torch.device | str = "cpu", capacity_bytes: int = DEFAULT_CAPACITY_BYTES) -> None:
        self.device = torch.device(device)
        self._capacity_bytes = capacity_bytes
        self._answers: OrderedDict[tuple[str, Case, Draw], Expected] = OrderedDict()

    def expected(self, task: Task, case: Case, draw: Draw) -> Expected:
        """The answer for the inputs that `make_inputs` makes of the draw on this device.

        Raises:
            TaskError: The reference returns a dtype that cannot be judged.
        """
        key = (task.name, case, draw)
        if key in self._answers:
            self._answers.move_to_end(key)
            return self._answers[key]
        answer = self._compute(task, case, draw)
        self._keep(key, answer)
        return answer

    def with_spread(self, task: Task, case: Case, draw: Draw) -> Expected | None:
        """The answer with its `spread`; None where no output is of few elements, or the case is too large to be drawn again."""
        answer = self.expected(task, case, draw)
        elements = sum(item.numel for item in case.arguments if isinstance(item, TensorSpec))
        if answer.exact is answer.reference or elements > LARGE_ELEMENTS or not any(map(_is_small, answer.reference.tensors)):
            return None
        if not answer.spread:
            seeds = ((draw.seed + number * _STEP) % _SEEDS for number in range(1, FURTHER_DRAWS + 1))
            others = [self._compute(task, case, Draw(seed, draw.variation)) for seed in seeds]
            answer = dataclasses.replace(answer, spread=_spread([answer, *others]))
            self._keep((task.name, case, draw), answer)
        return answer

    def with_rounding(self, task: Task, case: Case, draw: Draw, count: int = ROUNDINGS) -> Expected | None:
        """The answer with its `rounding` from at least `count` computations; nothing is known of it where the reference does something else
        when it rounds by chance, or fails. None where there is no float64 answer."""
        answer = self.expected(task, case, draw)
        if answer.exact is answer.reference:
            return None
        if answer.roundings < count:
            self._make_room(2 * (answer.exact.nbytes + answer.reference.nbytes))
            answer = dataclasses.replace(answer, rounding=self._rounding(task, case, draw, answer, count), roundings=count)
            self._keep((task.name, case, draw), answer)
        return answer

    def _rounding(self, task: Task, case: Case, draw: Draw, answer: Expected, count: int) -> tuple[Rounding | None, ...]:
        unknown = (None,) * len(answer.exact.tensors)
        wide = any(tensor.dtype in (torch.float64, torch.complex128) for tensor in answer.reference.tensors)
        epsilons = as_wide_as(torch.float64 if wide else torch.float32)
        natively, widely = Recording(), Recording()
        found: list[list[Rounding | None]] = []
        try:
            self._compute(task, case, draw, natively, widely)
            for number in range(count):
                seed = draw.seed + number * _STEP
                modes = Perturbing(NATIVE, seed, natively.decisions), Perturbing(epsilons, seed, widely.decisions)
                rounded = self._compute(task, case, draw, *modes)
                if _shapes(rounded.exact) != _shapes(answer.exact) or _shapes(rounded.reference) != _shapes(answer.exact):
                    return unknown
                outputs = zip(rounded.exact.tensors, rounded.reference.tensors, answer.exact.tensors, strict=True)
                found.append([_rounding(*map(comparable, tensors)) for tensors in outputs])
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception:  # noqa: BLE001 - of the reference, which checks what it computed or uses what no mode knows; it ran without
            return unknown
        return tuple(map(_together, zip(*found, strict=True)))

    def _keep(self, key: tuple[str, Case, Draw], answer: Expected) -> None:
        """In place of what was kept of it, if it may be kept."""
        self._answers.pop(key, None)
        if answer.nbytes <= self._capacity_bytes:
            self._make_room(answer.nbytes)
            self._answers[key] = answer

    def clear(self) -> None:
        """Forgets all answers, where their memory is needed."""
        self._answers.clear()

    @property
    def cached_bytes(self) -> int:
        """Bytes of the answers kept at present; never more than the capacity."""
        return sum(answer.nbytes for answer in self._answers.values())

    def _make_room(self, nbytes: int) -> None:
        while self._answers and self.cached_bytes + nbytes > self._capacity_bytes:
            self._answers.popitem(last=False)

    def _compute(
        self,
        task: Task,
        case: Case,
        draw: Draw,
        natively: AbstractContextManager[Any] | None = None,
        widely: AbstractContextManager[Any] | None = None,
    ) -> Expected:
        """`natively` and `widely` are entered for the reference in its own dtypes, and in float64."""
        inputs = make_inputs(task, case, draw.seed, self.device, draw.variation)
        grads = self._gradients(task, inputs, draw.seed) if task.backward else None
        wide_grads = None if grads is None else [grad.to(torch.float64) for grad in grads]
        with natively or nullcontext():
            reference = compute_outputs(task, inputs.clone(), grads)
        for index, tensor in enumerate(reference.tensors):
            name = str(tensor.dtype).removeprefix("torch.")
            if name not in JUDGED_DTYPES:
                where = f"task {task.name}: output {index} of the reference"
                raise TaskError(where, given=name, allowed=", ".join(JUDGED_DTYPES))
        if task.oracle != "pytorch64":
            return Expected(reference, reference)
        # Old answers go before the large one is made, not after.
        self._make_room(reference.nbytes + sum(8 * tensor.numel() for tensor in reference.tensors))
        with widely or nullcontext():
            exact = compute_outputs(task, to_float64(inputs), wide_grads)
        return Expected(exact, reference)

    def _gradients(self, task: Task, inputs: Inputs, seed: int) -> tuple[torch.Tensor, ...]:
        copies = inputs.clone()
        leading: tuple[Any, ...] = (copies.parameters,) if task.form == "module" else ()
        with torch.enable_grad():
            flat = flatten_outputs(task.reference(*leading, *copies.arguments))
        return make_grad_outputs(tuple(flat.tensors[place].detach() for place in differentiable_places(flat.tensors)), seed)


def _is_small(output: torch.Tensor) -> bool:
    return (output.dtype.is_floating_point and 0 < output.numel() <= FEW_ELEMENTS) or (
        output.is_complex() and 0 < 2 * output.numel() <= FEW_ELEMENTS
    )


def _spread(answers: Sequence[Expected]) -> tuple[torch.Tensor | None, ...]:
    found: list[torch.Tensor | None] = []
    for index, first in enumerate(answers[0].reference.tensors):
        sizes = {answer.reference.tensors[index].shape for answer in answers if index < len(answer.reference.tensors)}
        if not _is_small(first) or len(sizes) != 1:
            found.append(None)
            continue
        pairs = ((comparable(item.reference.tensors[index]), comparable(item.exact.tensors[index])) for item in answers)
        each = torch.stack([errors(r.double(), y.double())[0].reshape(-1) for r, y in pairs])
        found.append(each.square().mean(dim=0).sqrt())
    return tuple(found)


def _shapes(outputs: Outputs) -> list[torch.Size]:
    return [tensor.shape for tensor in outputs.tensors]


def _rounding(wide: torch.Tensor, native: torch.Tensor, exact: torch.Tensor) -> Rounding | None:
    """Of one output of one computation; mean magnitudes for the deviation, which a few flipped decisions hardly move."""
    if not exact.dtype.is_floating_point or not native.dtype.is_floating_point or not exact.numel():
        return None
    parts = []
    for w, n, y in tiles(tile_size(exact), wide, native, exact, device=exact.device):
        error, size = errors(n, y)
        # A normal number's standard deviation is √(π/2) times its mean magnitude.
        parts.append((math.sqrt(math.pi / 2) * errors(w, y)[0].mean(dim=1), row_norms(error), shown(error, size)))
    return Rounding(*(torch.cat(items) for items in zip(*parts, strict=True)))


def _together(found: Sequence[Rounding | None]) -> Rounding | None:
    known = [item for item in found if item is not None]
    if not known:
        return None
    kinds = zip(*((item.deviation, item.error, item.shown) for item in known), strict=True)
    deviations, norms, shares = (torch.stack(list(items)) for items in kinds)
    return Rounding(deviations.mean(dim=0), norms.amax(dim=0), shares.amax(dim=0))


@contextmanager
def matrix_products(tf32: bool = False) -> Iterator[None]:
    """No 16-bit partial sums, and no TF32 unless the task allows it, while the reference runs: they would inflate its error and so
    the tolerance. Where it is allowed, chains of products are then held against an error of that kind."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = (
        matmul.allow_tf32,
        cudnn.allow_tf32,
        matmul.allow_fp16_reduced_precision_reduction,
        matmul.allow_bf16_reduced_precision_reduction,
    )
    _set_reductions(matmul, cudnn, (tf32, tf32, False, False))
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
