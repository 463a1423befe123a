"""Makes the tensors of a case from a seed: the same on every call on one kind of device, without any global random state."""

from __future__ import annotations

from collections.abc import Mapping
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
        variation: See `Variation`.
    """
    generator = torch.Generator(device=device).manual_seed(seed % (1 << 63))
    parameters = {name: _make(spec, generator, task.backward) for name, spec in task.parameters.items()}
    arguments = tuple(_make(item, generator, task.backward) if isinstance(item, TensorSpec) else item for item in case.arguments)
    return Inputs(arguments, parameters)


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


def _make(spec: TensorSpec, generator: torch.Generator, backward: bool) -> torch.Tensor:
    # The whole storage is drawn, gaps between strided elements too: overlapping strides (expanded inputs) need no special case.
    span = sum((size - 1) * stride for size, stride in zip(spec.shape, spec.element_strides, strict=True)) + 1
    storage = _draw(spec, spec.offset + (span if spec.numel else 0), generator)
    tensor = storage.as_strided(spec.shape, spec.element_strides, spec.offset)
    return tensor.requires_grad_(backward and spec.requires_grad)


def _draw(spec: TensorSpec, count: int, generator: torch.Generator) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    device = generator.device
    wide = _draw_dtype(dtype)
    match spec.distribution:
        case "zeros":
            return torch.zeros(count, dtype=dtype, device=device)
        case "ones":
            return torch.ones(count, dtype=dtype, device=device)
        case "normal":
            values = torch.randn(count, generator=generator, device=device, dtype=wide).mul_(spec.scale)
        case "uniform":
            values = torch.rand(count, generator=generator, device=device, dtype=wide)
            values = values.mul_(spec.high - spec.low).add_(spec.low)
        case "integers":
            low, high = int(spec.low), int(spec.high)
            values = torch.randint(low, high, (count,), generator=generator, device=device, dtype=torch.int64)
    return values.to(dtype)


def _draw_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    # clone() alone would make dense copies of tensors with gaps; guards and alignment care about the original strides.
    with torch.no_grad():
        storage = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0).clone()
        copy = storage.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return copy.requires_grad_(tensor.requires_grad)
