"""Finds operators, model clients and evaluators by name: in our packages, through entry points, or as ``module:function``."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import operators
from evo.config import RunConfig
from evo.errors import ConfigError
from evo.evaluation.base import Evaluator
from evo.evaluation.settings import EvaluationSettings
from evo.tasks.base import Task
from operators.base import Operator

ENTRY_POINTS = "triton_evolve.operators"
NOT_OPERATORS = ("operators.models",)
"""Packages under `operators` that hold no operator and import a provider's SDK."""

EVALUATORS: Mapping[str, str] = {
    "kernels": "evo.evaluation.building:build_evaluator",
    "simulated": "evo.registry:build_simulated",
}

EvaluatorFactory = Callable[[Mapping[str, Task], EvaluationSettings, str], Evaluator]
"""(tasks by name, settings, device) → evaluator; the device is ``gpu`` or ``cpu:TARGET``."""


@functools.cache
def find_operators() -> Mapping[str, type[Operator]]:
    """Every operator class by name: the modules under `operators`, then the entry points.

    Raises:
        ConfigError: Two classes share a name.
    """
    found: dict[str, type[Operator]] = {}
    for cls in [*_packaged(), *_entry_points()]:
        other = found.setdefault(cls.name, cls)
        if other is not cls:
            raise ConfigError(
                f"operator {cls.name}",
                action=f"defined by {other.__module__} and by {cls.__module__}; uninstall one of the packages or rename one",
            )
    return dict(sorted(found.items()))


def operator_names(config: RunConfig) -> tuple[str, ...]:
    """The operators of a run, checked.

    Raises:
        ConfigError: An unknown name, or one that needs a model where `models` is empty.
    """
    known = find_operators()
    if config.operators is None:
        return tuple(name for name, cls in known.items() if config.models or not cls.needs_model)
    for position, name in enumerate(config.operators):
        where = f"operators.{position}"
        if name not in known:
            raise ConfigError(where, given=name, allowed=known)
        if known[name].needs_model and not config.models:
            raise ConfigError(where, given=name, action="it asks a language model: give `models:`, or leave it out")
    return tuple(dict.fromkeys(config.operators))


def evaluator_factory(name: str) -> EvaluatorFactory:
    """The function that builds an evaluator.

    Raises:
        ConfigError: Neither a registered name nor an importable ``module:function``.
    """
    module, _, attribute = EVALUATORS.get(name, name).partition(":")
    try:
        factory: EvaluatorFactory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        allowed = [*EVALUATORS, "module:function"]
        raise ConfigError("evaluator", given=name, allowed=allowed, action=f"it cannot be imported: {error}") from None
    return factory


def build_simulated(tasks: Mapping[str, Task], settings: EvaluationSettings, device: str) -> Evaluator:
    """The evaluator ``simulated``: no device, no kernel is run; for trying out searches and clusters."""
    from evo.evaluation.simulated import SimulatedEvaluator

    return SimulatedEvaluator(settings.seed)


def _packaged() -> Iterable[type[Operator]]:
    for info in pkgutil.walk_packages(operators.__path__, "operators."):
        if info.name.startswith(NOT_OPERATORS):
            continue
        module = importlib.import_module(info.name)
        yield from (cls for cls in vars(module).values() if _is_operator(cls) and cls.__module__ == info.name)


def _entry_points() -> Iterable[type[Operator]]:
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        cls = point.load()
        if not _is_operator(cls):
            raise ConfigError(f"entry point {point.name} of {ENTRY_POINTS}", given=point.value, allowed="a subclass of Operator")
        yield cls


def _is_operator(value: Any) -> bool:
    return (
        isinstance(value, type)
        and issubclass(value, Operator)
        and not inspect.isabstract(value)
        and not value.__name__.startswith("_")
        and hasattr(value, "name")
    )
