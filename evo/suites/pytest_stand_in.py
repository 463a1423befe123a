"""Stands in, in a sandboxed child, for pytest and for what the ROCm suite's tests measure with; runs tests on some parameters."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

MAX_COMBINATIONS = 4
"""Of parameters per test, evenly chosen."""
ENOUGH_S = 30.0
"""Nothing more is run after so many seconds: what tests compare with is computed here on the CPU."""
SAVING = ("test_save_results", "test_save_performance_results")
PERF_MODULE = "geak_eval.perf.ROCm.performance_utils_pytest"


class Skipped(Exception):
    """A test says that it does not apply."""


class _Marks:
    """``pytest.mark``: parameters are kept, anything else changes nothing."""

    def __getattr__(self, name: str) -> Any:
        return _parametrised if name == "parametrize" else lambda *args, **kwargs: _unchanged(args)


def _unchanged(args: Sequence[Any]) -> Any:
    return args[0] if len(args) == 1 and callable(args[0]) else lambda function: function


def _parametrised(names: Any, values: Any, **kwargs: Any) -> Callable[[Any], Any]:
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)

    def decorate(function: Any) -> Any:
        rows = [item.values if isinstance(item, _Param) else item if len(keys) > 1 else (item,) for item in values]
        function.parameters = [*getattr(function, "parameters", []), [dict(zip(keys, row, strict=False)) for row in rows]]
        return function

    return decorate


class _Param:
    def __init__(self, *values: Any, **kwargs: Any) -> None:
        self.values = values


def _skip(reason: str = "", **kwargs: Any) -> None:
    raise Skipped(reason)


class _Benchmarker:
    """Calls what it is to measure, once."""

    def __init__(self, op_callable: Callable[[], Any], *args: Any, **kwargs: Any) -> None:
        self._call = op_callable

    def run_benchmark(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The call; there is no figure."""
        self._call()
        return {}


@contextlib.contextmanager
def pretended_pytest() -> Iterator[None]:
    """The modules that the tests import."""
    fake = types.ModuleType("pytest")
    vars(fake).update(
        mark=_Marks(), fixture=lambda *args, **kwargs: _unchanged(args), param=_Param, skip=_skip, fail=_skip, xfail=_skip
    )
    vars(fake).update(
        importorskip=__import__, raises=lambda *args, **kwargs: contextlib.suppress(*args), approx=lambda value, **kw: value
    )
    made = {"pytest": fake}
    parts = PERF_MODULE.split(".")
    for count in range(1, len(parts) + 1):
        made[".".join(parts[:count])] = types.ModuleType(".".join(parts[:count]))
    vars(made[PERF_MODULE]).update(
        PytestBenchmarker=_Benchmarker,
        do_bench_config=lambda *args, **kwargs: None,
        save_all_benchmark_results=lambda *args: None,
    )
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


def run_tests(names: Mapping[str, Any], begin: Callable[[str], None]) -> str:
    """Runs every test of a file on some of its parameters; results are not looked at, since kernels wrote none.

    Args:
        names: Of the file.
        begin: Told what kind of test comes: ``perf`` or ``driver``.

    Returns:
        What the last failing test raised, empty if none did.
    """
    last, begun = "", time.monotonic()
    for name, function in list(names.items()):
        if not name.startswith("test") or not isinstance(function, types.FunctionType) or name in SAVING:
            continue
        begin("perf" if "perf" in name else "driver")
        rows = [
            dict(itertools.chain(*(part.items() for part in row)))
            for row in itertools.product(*getattr(function, "parameters", []))
        ]
        step = max(1, len(rows) // MAX_COMBINATIONS)
        for row in rows[::step][:MAX_COMBINATIONS]:
            if time.monotonic() - begun > ENOUGH_S:
                return "not all tests were run: they take long on the CPU"
            try:
                function(**{**_fixtures(function, names, row), **row})
            except Exception as error:  # noqa: BLE001  kernels wrote nothing, so assertions on their results fail
                last = "" if isinstance(error, Skipped | AssertionError) else f"{name}: {type(error).__name__}: {error}"
    return last


def _fixtures(function: Any, names: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in inspect.signature(function).parameters:
        if name in given:
            continue
        if name == "request":
            found[name] = types.SimpleNamespace(node=types.SimpleNamespace(name=function.__name__))
        elif name == "device":
            found[name] = "cuda"
        elif callable(names.get(name)) and not inspect.signature(names[name]).parameters:
            made = names[name]()
            found[name] = next(made) if inspect.isgenerator(made) else made
        else:
            found[name] = None
    return found
