"""Finds suites by name: those of the package, then those of the entry point group ``triton_evolve.suites``."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Mapping

from evo.errors import ConfigError
from evo.suites.base import Suite

ENTRY_POINTS = "triton_evolve.suites"
PACKAGED: Mapping[str, str] = {
    "kernelbench-1": "evo.suites.kernelbench:KernelBench1",
    "kernelbench-2": "evo.suites.kernelbench:KernelBench2",
    "kernelbench-3": "evo.suites.kernelbench:KernelBench3",
    "tritonbench-g": "evo.suites.tritonbench:TritonBenchG",
    "tritonbench-t": "evo.suites.tritonbench:TritonBenchT",
    "tritonbench-revised": "evo.suites.tritonbench:TritonBenchRevised",
    "rocm": "evo.suites.rocm:RocmBench",
}


def suite_names() -> tuple[str, ...]:
    """All of them; imports none."""
    others = [point.name for point in importlib.metadata.entry_points(group=ENTRY_POINTS)]
    return (*PACKAGED, *sorted(set(others) - set(PACKAGED)))


def find_suite(name: str) -> Suite:
    """The suite of that name.

    Raises:
        ConfigError: There is none.
    """
    if name in PACKAGED:
        module, _, attribute = PACKAGED[name].partition(":")
        found = getattr(importlib.import_module(module), attribute)()
    else:
        points = [point for point in importlib.metadata.entry_points(group=ENTRY_POINTS) if point.name == name]
        if not points:
            raise ConfigError("SUITE", given=name, allowed=suite_names())
        found = points[0].load()()
    if not isinstance(found, Suite):
        raise ConfigError(f"suite {name}", given=type(found).__name__, allowed="a subclass of evo.suites.base.Suite")
    return found
