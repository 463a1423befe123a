"""Gives Triton's interpreter what kernels have on a GPU: numbers that are tensors, and the functions of libdevice."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "tanh": np.tanh, "rsqrt": lambda x: 1 / np.sqrt(x), "sqrt": np.sqrt, "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2,
    "log1p": np.log1p, "expm1": np.expm1, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "rint": np.rint, "round": np.round,
    "nearbyint": np.rint, "abs": np.abs, "sin": np.sin, "cos": np.cos, "tan": np.tan, "atan": np.arctan, "asin": np.arcsin,
    "acos": np.arccos, "sinh": np.sinh, "cosh": np.cosh, "erf": np.vectorize(math.erf, otypes=[np.float64]), "pow": np.power,
    "atan2": np.arctan2, "fmod": np.fmod, "isnan": np.isnan, "isinf": np.isinf, "llrint": np.rint, "div_rn": np.divide,
}  # fmt: skip
"""What numpy calls them."""
MODULES = ("triton.language.extra.libdevice", "triton.language.extra.cuda.libdevice")


def completed() -> None:
    """Changes the interpreter of this process; to be called before modules of kernels are imported."""
    plain: Callable[[Any], Any] = interpreter._implicit_cvt

    def converted(argument: Any) -> Any:
        if isinstance(argument, float):  # a launch makes these float32 tensors, with methods such as `to`
            return tl.tensor(interpreter.TensorHandle(np.array([argument], dtype=np.float32), tl.float32), tl.float32)
        return plain(argument)

    interpreter._implicit_cvt = converted
    for name in MODULES:
        module = importlib.import_module(name)
        for function, meaning in FUNCTIONS.items():
            setattr(module, function, _elementwise(meaning))


def _elementwise(meaning: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        first = next(item for item in arguments if isinstance(item, tl.tensor))
        values = [item.handle.data if isinstance(item, tl.tensor) else getattr(item, "value", item) for item in arguments]
        found = meaning(*values)
        kind = first.dtype
        if found.dtype == np.bool_:
            handle = interpreter.TensorHandle(found, tl.int1)
            return tl.tensor(handle, tl.block_type(tl.int1, list(first.shape)) if first.type.is_block() else tl.int1)
        return tl.tensor(interpreter.TensorHandle(found.astype(first.handle.data.dtype), kind), first.type)

    return call
