"""Makes the tensors of a case from a seed: the same on every call on one kind of device, without any global random state.

Variations change floating-point tensors, parameters like arguments: a kernel could as well have learned what weights look like.
What a declaration means is kept. ``normal`` stands for any real number, so every variation applies to it. ``uniform`` declares
a range (probabilities, variances, gains), so only variations that stay in it apply: CONSTANT, TIES, SORTED. ``zeros`` and
``ones`` change under FILLED alone. Integers and booleans (indices, orders, lengths, masks, packed bits) never change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from evo.tasks.base import Case, Task, TensorSpec
from evo.tasks.draws import Variation

_GRADIENT_STREAM = 0x9E3779B97F4A7C15
"""Keeps the gradients of the outputs independent of the inputs that the same seed makes."""


@dataclass(frozen=True)
class Inputs:
    """What reference and entry are called with.

    Attributes:
        arguments: Positional arguments in order, tensors or plain values.
        parameters: State of a module by name; empty for functions.
    """

    arguments: tuple[Any, ...]
    parameters: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All tensors: parameters first, in name order as declared, then arguments."""
        return (*self.parameters.values(), *(item for item in self.arguments if isinstance(item, torch.Tensor)))

    def clone(self) -> Inputs:
        """Fresh copies that keep strides; a callee may write into them."""
        return Inputs(
            tuple(_copy(item) if isinstance(item, torch.Tensor) else item for item in self.arguments),
            {name: _copy(tensor) for name, tensor in self.parameters.items()},
        )

    def differentiable(self) -> tuple[torch.Tensor, ...]:
        """The tensors whose gradient is asked for, in the order of `tensors`."""
        return tuple(tensor for tensor in self.tensors if tensor.requires_grad)


def make_inputs(task: Task, case: Case, seed: int, device: torch.device | str, variation: Variation = Variation.PLAIN) -> Inputs:
    """Draws the parameters and arguments of a case.

    Args:
        task: Whose parameters to draw; `requires_grad` is honoured only where the task has a backward phase.
        case: Whose arguments to draw.
        seed: Any integer; equal seeds give equal bits on the same kind of device, not across kinds.
        device: Where the tensors live.
        variation: See `Variation`; tensors it does not apply to are as declared.
    """
    generator = torch.Generator(device=device).manual_seed(seed % (1 << 63))

    def make(spec: TensorSpec) -> torch.Tensor:
        return _make(spec, generator, task.backward, variation)

    parameters = {name: make(spec) for name, spec in task.parameters.items()}
    return Inputs(tuple(make(item) if isinstance(item, TensorSpec) else item for item in case.arguments), parameters)


def applicable_variations(task: Task, case: Case) -> tuple[Variation, ...]:
    """The variations that the task allows and that change some tensor of the case, in the order they are declared in; no PLAIN.

    None where nothing is computed (a case of 0 bytes). Where products may be taken in float16, values that it does not hold are
    left out.
    """
    if case.bytes == 0:
        return ()
    specs = [*task.parameters.values(), *(item for item in case.arguments if isinstance(item, TensorSpec) and item.numel)]
    allowed = task.variations
    if task.tolerance.products == "float16":
        allowed = allowed - {Variation.WIDE, Variation.HUGE, Variation.DENORMAL}
    return tuple(item for item in Variation if item in allowed and any(_applies(item, spec) for spec in specs))


def differentiable_places(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Positions of the flattened returned tensors that gradients flow back through: those that ask for one.

    The one definition of which outputs get a gradient: of the reference where gradients are drawn, of the entry where they
    are received; a kernel whose places differ from the reference's has another structure.
    """
    return tuple(place for place, tensor in enumerate(tensors) if tensor.requires_grad)


def make_grad_outputs(outputs: tuple[torch.Tensor, ...], seed: int) -> tuple[torch.Tensor, ...]:
    """Standard normal gradients of forward outputs, one per tensor, in its shape, dtype and device."""
    grads = []
    for index, output in enumerate(outputs):
        stream = (seed ^ _GRADIENT_STREAM) + index
        generator = torch.Generator(device=output.device).manual_seed(stream % (1 << 63))
        values = torch.randn(output.shape, generator=generator, device=output.device, dtype=_draw_dtype(output.dtype))
        grads.append(values.to(output.dtype))
    return tuple(grads)


def to_float64(inputs: Inputs) -> Inputs:
    """Copies with every floating-point tensor in float64; integers, booleans and plain values stay what they are."""

    def widen(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if not value.dtype.is_floating_point:
            return _copy(value)
        wide = value.detach().to(torch.float64, copy=True)
        return wide.requires_grad_(value.requires_grad)

    return Inputs(tuple(map(widen, inputs.arguments)), {name: widen(value) for name, value in inputs.parameters.items()})


def _applies(variation: Variation, spec: TensorSpec) -> bool:
    if not getattr(torch, spec.dtype).is_floating_point:
        return False
    match spec.distribution:
        case "normal":
            return variation not in (Variation.PLAIN, Variation.FILLED) and (
                variation is not Variation.WIDE or spec.dtype != "float16"
            )
        case "uniform":
            return variation in (Variation.CONSTANT, Variation.TIES, Variation.SORTED)
        case "zeros" | "ones":
            return variation is Variation.FILLED
    return False


def _make(spec: TensorSpec, generator: torch.Generator, backward: bool, variation: Variation) -> torch.Tensor:
    # The whole storage is drawn, gaps between strided elements too: overlapping strides (expanded inputs) need no special case.
    span = sum((size - 1) * stride for size, stride in zip(spec.shape, spec.element_strides, strict=True)) + 1
    count = spec.offset + (span if spec.numel else 0)
    if not _applies(variation, spec):
        return _place(spec, _draw(spec, count, generator).to(getattr(torch, spec.dtype)), backward)
    values = _vary(spec, count, generator, variation).to(getattr(torch, spec.dtype))
    tensor = _place(spec, values, backward)
    if variation is Variation.SORTED and spec.numel and spec.shape:
        # Rows that share memory cannot be sorted one by one; their storage is.
        overlapping = any(size > 1 and stride == 0 for size, stride in zip(spec.shape, spec.element_strides, strict=True))
        with torch.no_grad():
            values.copy_(values.sort().values) if overlapping else tensor.copy_(tensor.sort(dim=-1).values)
    return tensor


def _place(spec: TensorSpec, values: torch.Tensor, backward: bool) -> torch.Tensor:
    tensor = values.as_strided(spec.shape, spec.element_strides, spec.offset)
    return tensor.requires_grad_(backward and spec.requires_grad)


def _draw(spec: TensorSpec, count: int, generator: torch.Generator) -> torch.Tensor:
    """Values of the declared distribution, not yet in its dtype."""
    device = generator.device
    wide = _draw_dtype(getattr(torch, spec.dtype))
    match spec.distribution:
        case "zeros":
            return torch.zeros(count, dtype=wide, device=device)
        case "ones":
            return torch.ones(count, dtype=wide, device=device)
        case "normal":
            return torch.randn(count, generator=generator, device=device, dtype=wide).mul_(spec.scale)
        case "uniform":
            values = torch.rand(count, generator=generator, device=device, dtype=wide)
            return values.mul_(spec.high - spec.low).add_(spec.low)
        case "integers":
            low, high = int(spec.low), int(spec.high)
            return torch.randint(low, high, (count,), generator=generator, device=device, dtype=torch.int64)
        case "permutation":
            low, high = int(spec.low), int(spec.high)
            return torch.randperm(high - low, generator=generator, device=device)[:count] + low
        case "partition":
            low, high = int(spec.low), int(spec.high)
            cuts = torch.randint(low, high + 1, (count - 2,), generator=generator, device=device, dtype=torch.int64)
            ends = torch.tensor([low, high], device=device)
            return torch.cat([ends, cuts]).sort().values
        case "float8_e4m3fn":
            values = torch.randn(count, generator=generator, device=device, dtype=torch.float32).mul_(spec.scale)
            largest = torch.finfo(torch.float8_e4m3fn).max
            return values.clamp_(-largest, largest).to(torch.float8_e4m3fn).view(torch.uint8)


def _vary(spec: TensorSpec, count: int, generator: torch.Generator, variation: Variation) -> torch.Tensor:
    """Values of the varied distribution, not yet in its dtype; SORTED ones are still in random order."""
    device, info = generator.device, torch.finfo(getattr(torch, spec.dtype))
    wide = _draw_dtype(getattr(torch, spec.dtype))
    if variation is Variation.FILLED:
        gain = torch.rand(count, generator=generator, device=device, dtype=wide).add_(0.5)
        return gain if spec.distribution == "ones" else gain.sub_(1.0)
    deviations = {
        Variation.LARGE: 32.0, Variation.WIDE: math.sqrt(info.max) / 256, Variation.HUGE: info.max / 16, Variation.DENORMAL: info.tiny / 4,
    }  # fmt: skip
    if variation in deviations:  # normals beyond eight deviations do not occur
        return torch.randn(count, generator=generator, device=device, dtype=wide).mul_(deviations[variation])
    if variation in (Variation.CONSTANT, Variation.TIES):
        levels = _few_digits(spec, _draw(spec, 1 if variation is Variation.CONSTANT else 4, generator))
        return levels[torch.randint(len(levels), (count,), generator=generator, device=device)]
    values = _draw(spec, count, generator)
    match variation:
        case Variation.TIMES_3:
            return values.mul_(3.0)
        case Variation.TIMES_0_01:
            return values.mul_(0.01)
        case Variation.POSITIVE:
            return values.abs_()
        case Variation.NEGATED:
            return values.abs_().neg_()
        case Variation.SORTED:
            step = 2.0 ** (_exponent(spec) - 5)
            return values.div_(step).round_().mul_(step) if spec.distribution == "normal" else values
        case _:
            chosen = torch.rand(count, generator=generator, device=device)
            share = 0.1 if variation is Variation.SPARSE else 0.0
            return torch.where(chosen < share, values, values.mul(0.0))


def _few_digits(spec: TensorSpec, values: torch.Tensor) -> torch.Tensor:
    """Rounded to quarters of the largest power of two within the declared scale, never to zero, and kept in a declared range."""
    step = 2.0 ** (_exponent(spec) - 2)
    rounded = values.abs().div(step).round().clamp(min=1.0).mul(step).copysign(values)
    return rounded.clamp(spec.low, spec.high) if spec.distribution == "uniform" else rounded


def _exponent(spec: TensorSpec) -> int:
    scale = spec.scale if spec.distribution == "normal" else max(abs(spec.low), abs(spec.high))
    return math.frexp(scale)[1] - 1 if scale else 0


def _draw_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    # clone() alone would make dense copies of tensors with gaps; guards and alignment care about the original strides.
    with torch.no_grad():
        storage = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0).clone()
        copy = storage.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return copy.requires_grad_(tensor.requires_grad)
