"""Writes a call of a test as source of an entry, and describes the tensors it takes; runs in the sandboxed child."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import triton

ENTRY = "suite_entry"
"""Name of the function (or class) that stands for a call."""
LARGE = 1 << 22
"""Elements from which on a tensor is made without its values, but for its beginning."""
LOOKED_AT = 1 << 16
"""Elements of a tensor that tell how it was drawn."""
TELLING = 8
"""So many elements of one sign are no accident."""
_PLAIN = (bool, int, float, str, tuple, torch.dtype)
Made = dict[int, tuple[Any, str, tuple[Any, ...], dict[str, Any]]]
"""Instances of the module's classes by id: the instance, its class' name, what it was made from."""


class Unread(Exception):
    """A call that no entry says: an argument is of a type that a task cannot give."""


class Text:
    """Writes a call as source; collects the tensors and numbers it takes, or writes numbers too (`constant`)."""

    def __init__(self, made: Made, *, constant: bool = False) -> None:
        self.arguments: list[Any] = []
        self._made = made
        self._constant = constant

    def function(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """A function that makes the call."""
        call = self.call(name, args, kwargs)
        if name.endswith("]"):  # a launch: its grid is given by numbers, too
            kernel, _, sizes = name.rpartition("[")
            grid = "".join(f"{self._argument(int(size))}, " for size in sizes.strip("[]()").split(",") if size.strip())
            call = f"{kernel}[({grid})]{call.removeprefix(name)}"
        given = "" if name.endswith("]") else "return "  # what a launch gives is nothing that an entry may return
        return f"def {ENTRY}({', '.join(f'a{place}' for place in range(len(self.arguments)))}):\n    {given}{call}\n"

    def module(
        self, name: str, made: Sequence[Any], named: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> str:
        """A class that makes what the test made, and is called as the test called it."""
        init = Text(self._made, constant=True).call("super().__init__", made, named)
        call = self.call("super().forward", args, kwargs)
        taken = ", ".join(["self", *(f"a{place}" for place in range(len(self.arguments)))])
        return f"class {ENTRY}({name}):\n    def __init__(self):\n        {init}\n\n    def forward({taken}):\n        return {call}\n"

    def call(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The call as an expression."""
        given = [self._value(item) for item in args] + [f"{key}={self._value(item)}" for key, item in kwargs.items()]
        return f"{name}({', '.join(given)})"

    def _value(self, item: Any) -> str:
        if isinstance(item, torch.nn.Module):
            return self._held(item)
        if id(item) in self._made:
            _, name, args, kwargs = self._made[id(item)]
            return self.call(name, args, kwargs)
        if isinstance(item, torch.Tensor):
            return self._argument(specification(item))
        if isinstance(item, np.generic):
            return self._value(item.item())
        if item is None or isinstance(item, str | torch.dtype):
            return repr(item)
        if isinstance(item, float) and not math.isfinite(item):
            return f"float({str(item)!r})"
        if isinstance(item, bool | int | float):
            return self._argument(item)
        if isinstance(item, torch.device):
            return "torch.device('cuda')"
        if isinstance(item, list):
            return f"[{', '.join(map(self._value, item))}]"
        if isinstance(item, tuple):
            return f"({''.join(f'{self._value(part)}, ' for part in item)})"
        if isinstance(item, dict):
            return f"{{{', '.join(f'{key!r}: {self._value(part)}' for key, part in item.items())}}}"
        if isinstance(item, triton.language.dtype):
            return f"triton.language.dtype({item.name!r})"
        if getattr(item, "__module__", "") == "kernel" and hasattr(item, "__name__"):
            return str(item.__name__)
        raise Unread(f"an argument of type {type(item).__name__}")

    def _held(self, module: torch.nn.Module) -> str:
        """A module that is an argument, as what holds its tensors and numbers: a kernel reads those, and never calls it."""
        if any(True for _ in module.children()):
            raise Unread("a module of modules as an argument")
        plain = {key: item for key, item in vars(module).items() if not key.startswith("_") and isinstance(item, _PLAIN)}
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return f"type('Held', (), {{{', '.join(f'{key!r}: {self._value(item)}' for key, item in {**plain, **tensors}.items())}}})"

    def _argument(self, item: Any) -> str:
        if self._constant and isinstance(item, dict):
            raise Unread("a module made from a list of tensors")
        if self._constant:
            return repr(item)
        self.arguments.append(item)
        return f"a{len(self.arguments) - 1}"


def specification(tensor: torch.Tensor) -> dict[str, Any]:
    """A `TensorSpec` in JSON form: the layout as it is, and of the values what kind of draw they look like.

    Raises:
        Unread: No TensorSpec says it.
    """
    with torch._C.DisableTorchFunction():
        if tensor.layout is not torch.strided or tensor.is_complex() or tensor.is_quantized:
            raise Unread(f"a tensor of {tensor.dtype}, {tensor.layout}")
        found: dict[str, Any] = {
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "strides": list(tensor.stride()),
            "offset": tensor.storage_offset(),
            "requires_grad": bool(tensor.requires_grad),
        }
        return found | _looks(tensor.detach())


def _beginning(whole: torch.Tensor) -> torch.Tensor:
    """Its first `LOOKED_AT` elements, without a copy of the rest; of a part of a large tensor that has no values there, those that the
    large one begins with."""
    part, storage = whole, whole.untyped_storage()
    while part.dim() and part.numel() and part[0].numel() >= LOOKED_AT:
        part = part[0]
    if part.numel() > LOOKED_AT:
        part = part[: -(-LOOKED_AT // part[0].numel())]
    found = part.flatten()[:LOOKED_AT]
    if storage.nbytes() >= LARGE * whole.element_size() and whole.dtype is not torch.float8_e5m2 and not bool(found.any()):
        return torch.empty(0, dtype=whole.dtype).set_(storage)[:LOOKED_AT]
    return found


def _looks(whole: torch.Tensor) -> dict[str, Any]:
    tensor = _beginning(whole)
    if tensor.numel() == 0 or not bool(tensor.any() if tensor.dtype is not torch.float8_e5m2 else True):
        return {"distribution": "zeros"}
    values = tensor.double() if tensor.is_floating_point() else tensor.long()
    low, high = float(values.min()), float(values.max())
    if low == high == 1.0:
        return {"distribution": "ones"}
    if not tensor.is_floating_point():
        negative = values < 0
        if bool(negative.any()) and not bool(negative.all()) and low == float(values[negative].max()):
            low = float(values[~negative].min())  # one negative number among places and labels means none of them
        return _order(whole, values, low, high) or {"distribution": "integers", "low": low, "high": high + 1}
    if not (math.isfinite(low) and math.isfinite(high)):
        return {"distribution": "normal"}
    if low >= 0.0 and high <= 1.0:
        return {"distribution": "uniform"}
    if low >= 0.0 and low < high and tensor.numel() >= TELLING:
        return {"distribution": "uniform", "low": low, "high": high}
    return {"distribution": "normal", "scale": max(float(values.std(correction=0)), 1e-6)}


def _order(whole: torch.Tensor, values: torch.Tensor, low: float, high: float) -> dict[str, Any] | None:
    """Places and offsets, which only mean something together: each number once, or a vector that ascends; None where it is neither."""
    count = whole.numel()
    if (
        whole.dtype not in (torch.int32, torch.int64)
        or not whole.is_contiguous()
        or whole.storage_offset()
        or count > len(values)
    ):
        return None
    if count > 1 and high - low + 1 == count == len(set(values.tolist())):
        return {"distribution": "permutation", "low": low, "high": high + 1, "strides": None}
    if count > 1 and whole.dim() == 1 and low < high and bool((values[1:] >= values[:-1]).all()):
        return {"distribution": "partition", "low": low, "high": high, "strides": None}
    return None
