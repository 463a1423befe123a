"""How a hosted process tells of what its candidate returned: nesting, descriptions, and which memory it shares."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import torch

from evo.evaluation.hosted_memory import span


class WrongStructure(Exception):
    """The entry returned something that is no plain tensor on its device, or more than there is room for."""


def nesting_of(value: Any) -> tuple[Any, list[torch.Tensor]]:
    """How a result is nested (``*`` for a tensor), and its tensors in order."""
    if isinstance(value, torch.Tensor):
        return "*", [value.detach()]
    if value is None:
        return None, []
    if isinstance(value, tuple | list):
        parts = [nesting_of(item) for item in value]
        return {type(value).__name__: [shape for shape, _ in parts]}, [tensor for _, found in parts for tensor in found]
    if isinstance(value, Mapping):
        named = [(str(key), nesting_of(item)) for key, item in value.items()]
        return {"dict": [[key, shape] for key, (shape, _) in named]}, [tensor for _, (_, found) in named for tensor in found]
    raise WrongStructure(f"an output of type {type(value).__name__}; allowed: tensors, None, and tuples, lists, dicts of them")


def sharing_of(
    outputs: list[torch.Tensor], arguments: list[Any], parameters: Mapping[str, torch.Tensor]
) -> list[tuple[str, str]]:
    """Which outputs share memory with what was lent, or with each other, by name; see `evo.evaluation.aliasing`."""
    made = [(f"output {index}", *_bytes_of(item)) for index, item in enumerate(outputs) if item.numel()]
    given = [(f"parameter {name}", *_bytes_of(item)) for name, item in parameters.items() if item.numel()]
    tensors = [(position, item) for position, item in enumerate(arguments) if isinstance(item, torch.Tensor) and item.numel()]
    given += [(f"argument {position}", *_bytes_of(item)) for position, item in tensors]
    pairs = [*combinations(made, 2), *((one, other) for one in made for other in given)]
    return [(one[0], other[0]) for one, other in pairs if one[1] < other[2] and other[1] < one[2]]


def _bytes_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Address of the first byte, and of the one after the last."""
    start = tensor.data_ptr()
    return start, start + span(tensor.shape, tensor.stride()) * tensor.element_size()


def description_of(tensor: torch.Tensor) -> dict[str, Any]:
    """Type, shape and strides, in JSON form."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": list(tensor.shape), "strides": list(tensor.stride())}
