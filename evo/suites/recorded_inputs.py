"""Records how tensors are drawn, without drawing them, as specifications that an evaluator can draw from its own seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from evo.errors import TaskError
from evo.tasks.base import DTYPE_BYTES, Argument, TensorSpec

_CASTS = ("to", "float", "half", "bfloat16", "double", "bool", "contiguous", "clone", "detach", "cuda", "cpu")
_RESTRICTED = ("triu", "tril")


@dataclass(frozen=True)
class _Drawn:
    """How a tensor was drawn; `spec` is None once something happened to it that no distribution describes, by `how`."""

    spec: TensorSpec | None
    how: str = ""
    scalar: bool = False


class Recorder(TorchFunctionMode):
    """Notes how tensors are drawn, and what becomes of them by scaling, shifting and casting. Enter it inside a `FakeTensorMode`.

    Attributes:
        notes: Liberties that were taken.
    """

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []
        self._drawn: dict[int, _Drawn] = {}
        self._alive: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called for every torch function and tensor method."""
        keywords = dict(kwargs or {})
        result = func(*args, **keywords)
        if isinstance(result, torch.Tensor) and getattr(func, "__self__", None) is torch.Tensor.T:
            self._alive.append(result)
            self._drawn[id(result)] = _transposed(self._drawn.get(id(args[0])), result)
        elif isinstance(result, torch.Tensor):
            self._alive.append(result)  # keeps its id
            self._drawn[id(result)] = self._describe(getattr(func, "__name__", str(func)).strip("_"), args, keywords, result)
        return result

    def argument(self, item: Any, where: str) -> Argument:
        """A TensorSpec, or the plain value itself.

        Raises:
            TaskError: It was made in a way that no TensorSpec describes.
        """
        if item is None or isinstance(item, bool | int | float):
            return item
        if not isinstance(item, torch.Tensor):
            raise TaskError(where, given=f"a {type(item).__name__}", allowed="tensors and plain numbers")
        drawn = self._drawn.get(id(item), _Drawn(None, "something that was not recorded"))
        if drawn.spec is None:
            allowed = "rand, randn and randint, scaled, shifted or cast"
            raise TaskError(where, given=f"a tensor made by {drawn.how}", allowed=allowed)
        return drawn.spec

    def _describe(self, name: str, args: Any, keywords: Mapping[str, Any], result: torch.Tensor) -> _Drawn:
        shape, dtype = tuple(map(int, result.shape)), str(result.dtype).removeprefix("torch.")
        if dtype not in DTYPE_BYTES:
            return _Drawn(None, f"{name} in {dtype}")
        if name in ("rand", "randn", "zeros", "ones", "randint"):
            return _Drawn(_drawn_spec(name, args, shape, dtype), scalar=not shape)
        operands = [self._drawn.get(id(item)) if isinstance(item, torch.Tensor) else item for item in args]
        if name in _CASTS:
            source = operands[0]
            if not isinstance(source, _Drawn) or source.spec is None:
                return _Drawn(None, name)
            if dtype == "bool" and source.spec.distribution != "integers":
                return _Drawn(None, f"{name} of {source.spec.distribution}")
            strides = None if name == "contiguous" else source.spec.strides
            return replace(source, spec=replace(source.spec, dtype=dtype, strides=strides))
        if name in _RESTRICTED or name == "softmax":
            return self._restricted(name, operands, args, keywords)
        if name in ("mul", "rmul", "add", "radd", "sub", "rsub", "div", "truediv", "neg", "imul", "iadd") and not keywords:
            return self._scaled(name, operands, shape, dtype)
        return _Drawn(None, name)

    def _restricted(self, name: str, operands: Sequence[Any], args: Any, keywords: Mapping[str, Any]) -> _Drawn:
        """A tensor of a kind that no distribution gives, as a more general one: what is right for that is right here too."""
        source = operands[0]
        if not isinstance(source, _Drawn) or source.spec is None:
            return _Drawn(None, name)
        if name != "softmax":
            self.notes.append(f"a matrix made by {name} counts as a full one: a kernel may not leave out its zeros")
            return source
        spec, place = source.spec, keywords.get("dim", args[1] if len(args) > 1 else -1)
        if spec.distribution != "uniform" or spec.high <= spec.low:
            return _Drawn(None, f"softmax of {spec.distribution}")
        self.notes.append("a softmax of random numbers counts as numbers of its range, whose sum is about 1")
        total = spec.shape[place] * (math.exp(spec.high) - math.exp(spec.low)) / (spec.high - spec.low)
        return _Drawn(replace(spec, low=math.exp(spec.low) / total, high=math.exp(spec.high) / total))

    def _scaled(self, name: str, operands: Sequence[Any], shape: tuple[int, ...], dtype: str) -> _Drawn:
        tensors = [item for item in operands if isinstance(item, _Drawn)]
        numbers = [float(item) for item in operands if isinstance(item, bool | int | float)]
        source = next((item for item in tensors if item.spec is not None and item.spec.shape == shape), None)
        if len(tensors) == 2 and name == "mul" and source is not None and any(item.scalar for item in tensors):
            self.notes.append("a random scalar that scales an input counts as 1")
            return source
        if name == "add" and source is not None and source.spec is not None and _are_alike(tensors, source.spec):
            self.notes.append("a sum of two random tensors counts as random numbers of its range, without symmetry")
            return _Drawn(_moved(source.spec, 2.0, 0.0))
        if source is None or source.spec is None or len(tensors) != 1 or len(numbers) != len(operands) - 1:
            return _Drawn(None, name)
        first = isinstance(operands[0], _Drawn)
        factor, shift = _affine(name, numbers[0] if numbers else 0.0, first)
        spec = _moved(source.spec, factor, shift)
        if spec is not None and spec.distribution == "integers" and factor not in (-1.0, 1.0):
            self.notes.append("integers that lie further apart count as all those between")
        return _Drawn(None, f"{name} of {source.spec.distribution}") if spec is None else _Drawn(replace(spec, dtype=dtype))


def _are_alike(pair: Sequence[_Drawn], spec: TensorSpec) -> bool:
    """Whether two tensors are drawn from one interval, of the same shape."""
    plain = {replace(item.spec, strides=None) if item.spec is not None else None for item in pair}
    return len(pair) == 2 and plain == {replace(spec, strides=None)} and spec.distribution == "uniform"


def _transposed(source: _Drawn | None, result: torch.Tensor) -> _Drawn:
    """The same numbers in another order; contiguous in what is made of them."""
    if source is None or source.spec is None:
        return _Drawn(None, "a transposition of what is not known")
    if source.spec.strides is not None:
        return _Drawn(None, "a transposition of what is not contiguous")
    return _Drawn(replace(source.spec, shape=tuple(map(int, result.shape)), strides=tuple(map(int, result.stride()))))


def _drawn_spec(name: str, args: Any, shape: tuple[int, ...], dtype: str) -> TensorSpec:
    match name:
        case "rand":
            return TensorSpec(shape, dtype, "uniform", low=0.0, high=1.0)
        case "randn":
            return TensorSpec(shape, dtype, "normal")
        case "zeros":
            return TensorSpec(shape, dtype, "zeros")
        case "ones":
            return TensorSpec(shape, dtype, "ones")
    low, high = (args[0], args[1]) if isinstance(args[1], int) else (0, args[0])
    return TensorSpec(shape, dtype, "integers", low=float(low), high=float(high))


def _affine(name: str, number: float, tensor_first: bool) -> tuple[float, float]:
    """Factor and shift of ``tensor OP number``, or of ``number OP tensor``."""
    match name:
        case "mul" | "rmul" | "imul":
            return number, 0.0
        case "add" | "radd" | "iadd":
            return 1.0, number
        case "sub":
            return (1.0, -number) if tensor_first else (-1.0, number)
        case "rsub":
            return -1.0, number
        case "neg":
            return -1.0, 0.0
    return (1.0 / number, 0.0) if tensor_first and number else (math.nan, math.nan)


def _moved(spec: TensorSpec, factor: float, shift: float) -> TensorSpec | None:
    """The distribution of factor · x + shift; None where no TensorSpec says it."""
    if not math.isfinite(factor) or not math.isfinite(shift):
        return None
    if spec.distribution == "uniform" and factor:
        low, high = sorted((factor * spec.low + shift, factor * spec.high + shift))
        return replace(spec, low=low, high=high)
    if spec.distribution == "integers" and factor and factor.is_integer() and shift.is_integer():
        low, high = sorted((factor * spec.low + shift, factor * (spec.high - 1) + shift))
        return replace(spec, low=low, high=high + 1)
    if spec.distribution == "normal" and not shift:
        return replace(spec, scale=abs(factor) * spec.scale)
    return spec if (factor, shift) == (1.0, 0.0) else None
