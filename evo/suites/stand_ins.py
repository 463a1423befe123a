"""Stands in, in a sandboxed child, for modules that the scripts of suites import only to measure or to be found by pytest."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

PACKAGES = ("TritonBench_v1", "TorchBench_v1")
"""As which TritonBench's measuring scripts import the file that they measure."""


class Measured:
    """The base class of TritonBench's measuring scripts, as far as they use it before they measure."""

    def __init__(self, op_name: str, dtype: Any = None, is_backward: bool = False, **kwargs: Any) -> None:
        self.op_name, self.dtype, self.is_backward, self.kwargs = op_name, dtype, is_backward, kwargs
        self.input_tensors: list[Any] = []


@contextlib.contextmanager
def pretended_modules(names: Mapping[str, Any], name: str) -> Iterator[None]:
    """The modules that scripts of TritonBench import, with the names of the file that they test or measure."""
    measured = _module(name, names)
    made = {
        "performance_utils": _module("performance_utils", {"Performance_Metrics": Measured, "do_bench_config": _nothing}),
        **{package: _module(package, {name: measured}) for package in PACKAGES},
        **{f"{package}.{name}": measured for package in PACKAGES},
        name: measured,
    }
    before = {key: sys.modules.get(key) for key in made}
    sys.modules.update(made)
    try:
        yield
    finally:
        for key, module in before.items():
            if module is None:
                del sys.modules[key]
            else:
                sys.modules[key] = module


def _module(name: str, names: Mapping[str, Any]) -> types.ModuleType:
    made = types.ModuleType(name)
    vars(made).update(names)
    return made


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Settings of a measurement that nobody makes."""
