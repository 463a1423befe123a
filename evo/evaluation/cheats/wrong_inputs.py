"""Cheats that compute the right thing on other inputs than those given: left out, cut short, rounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from evo.evaluation.cheats.base import Cheat
from evo.evaluation.cheats.scene import Scene, same_bits
from evo.evaluation.inputs import Inputs
from evo.evaluation.oracle import Outputs
from evo.evaluation.tolerance import PRODUCT_EPSILON

Key = int | str
"""A position among the arguments, or the name of a parameter."""


def wrong_inputs(scene: Scene) -> Iterator[Cheat]:
    """The cheats for the arguments and parameters of a task."""
    for key, label in _changeable(scene):
        yield from (_ignoring(key, label, value) for value in (0, 1))
        yield _last_left_out(key, label)
    yield from (_rounding(kind) for kind in _MANTISSA_BITS)


def _changeable(scene: Scene) -> Iterator[tuple[Key, str]]:
    for name, tensor in scene.inputs.parameters.items():
        if tensor.dtype.is_floating_point:
            yield name, f"parameter {name}"
    for position, item in enumerate(scene.inputs.arguments):
        # What is updated in place has to be the caller's own tensor.
        if isinstance(item, torch.Tensor) and item.dtype.is_floating_point and position not in scene.task.mutates:
            yield position, f"argument {position}"


def _changed(inputs: Inputs, key: Key, change: Callable[[torch.Tensor], torch.Tensor]) -> Inputs:
    if isinstance(key, str):
        return Inputs(inputs.arguments, {**inputs.parameters, key: change(inputs.parameters[key])})
    arguments: tuple[Any, ...] = tuple(change(item) if at == key else item for at, item in enumerate(inputs.arguments))
    return Inputs(arguments, inputs.parameters)


def _ignoring(key: Key, label: str, value: int) -> Cheat:
    fill: Callable[[torch.Tensor], torch.Tensor] = torch.ones_like if value else torch.zeros_like
    cure = f"draw {label} from a normal or uniform distribution, with a larger scale than now, so that it shows in the outputs"
    return Cheat(
        f"{label} taken as {('zeros', 'ones')[value]}",
        "a bias, scale or input left out",
        cure,
        lambda scene: scene.answer(f"without_{key}_{value}", lambda inputs: _changed(inputs, key, fill)),
    )


def _last_left_out(key: Key, label: str) -> Cheat:
    def shorten(tensor: torch.Tensor) -> torch.Tensor:
        keep = torch.ones(tensor.shape[-1], dtype=tensor.dtype, device=tensor.device)
        keep[-1] = 0
        return tensor * keep

    def forge(scene: Scene) -> Outputs | None:
        tensor = scene.inputs.parameters[key] if isinstance(key, str) else scene.inputs.arguments[key]
        if tensor.dim() == 0 or tensor.shape[-1] < 2:
            return None
        return scene.answer(f"shorter_{key}", lambda inputs: _changed(inputs, key, shorten))

    cure = f"a small case with few elements (odd, say 5) in the last dimension of {label}, where each of them weighs more"
    return Cheat(f"the last column of {label} left out", "a load mask off by one", cure, forge)


_MANTISSA_BITS: Mapping[str, int] = {"TF32": 10, "float16": 10, "bfloat16": 7}


def _rounding(kind: str) -> Cheat:
    def narrow(tensor: torch.Tensor) -> torch.Tensor:
        if kind != "TF32":
            return tensor.to(torch.float16 if kind == "float16" else torch.bfloat16).to(tensor.dtype)
        if tensor.dtype is not torch.float32:
            return tensor
        # Half a unit of the tenth mantissa bit is added, then the thirteen bits below are cut off: rounds to nearest.
        bits = tensor.detach().contiguous().view(torch.int32)
        rounded = ((bits + 0x1000) & ~0x1FFF).view(torch.float32)
        return tensor + (rounded - tensor.detach())  # keeps the gradient

    def change(scene: Scene, inputs: Inputs) -> Inputs:
        for key, _ in _changeable(scene):
            inputs = _changed(inputs, key, narrow)
        return inputs

    epsilon = 2.0 ** -_MANTISSA_BITS[kind]

    def forge(scene: Scene) -> Outputs | None:
        if PRODUCT_EPSILON[scene.task.tolerance.products] >= epsilon or not _finer_than(scene, epsilon):
            return None  # the task says that it allows this, or rounds its outputs so that it hides what is lost inside
        forged = scene.answer(f"in_{kind}", lambda inputs: change(scene, inputs))
        return None if forged is None or same_bits(forged, scene.honest) else forged

    cure = "a smaller tolerance.ratio or tolerance.floor_epsilons, or outputs of the narrower dtype if that precision is enough"
    return Cheat(f"inputs rounded to {kind}", "a lower precision than asked for", cure, forge)


def _finer_than(scene: Scene, epsilon: float) -> bool:
    """Whether an input and an output of the task resolve more than `epsilon`."""
    inputs, outputs = scene.inputs.tensors, scene.honest.tensors
    return all(
        any((item.is_floating_point() or item.is_complex()) and torch.finfo(item.dtype).eps < epsilon for item in tensors)
        for tensors in (inputs, outputs)
    )
