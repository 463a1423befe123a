"""Builds, in any process of a run, the tasks and operators that its configuration names."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Callable, Mapping

from evo.config import ModelSection, RunConfig
from evo.errors import ConfigError, TaskError, TaskErrors
from evo.records import Variant
from evo.registry import find_operators, operator_names
from evo.search.bandit import Arm
from evo.search.earlier import read_earlier
from evo.search.library import read_library
from evo.search.setup import OperatorInfo, TaskSetup
from evo.tasks.base import Task
from operators.base import Context, Example, Operator
from operators.chaining import is_chainable
from operators.models.base import Form, Model
from operators.models.building import build_model, check_model
from operators.models.ledger import Account, Ledger
from operators.models.limits import Limiter
from operators.models.tier import TierModel


def load_tasks(config: RunConfig, *, check: bool = True) -> Mapping[str, Task]:
    """The tasks by name, in the configuration's order.

    Args:
        config: Of the run.
        check: Whether they are checked, see `evo.tasks.loading.load_task`.

    Raises:
        TaskError: Some are missing or broken.
        ConfigError: Two have one name.
    """
    from evo.tasks.loading import load_task  # imports torch, which a proposer does without

    tasks: dict[str, Task] = {}
    wrong: list[TaskError] = []
    for position, reference in enumerate(config.tasks):
        try:
            task = load_task(reference, check=check)
        except TaskError as error:
            wrong.append(TaskError(f"tasks.{position}: {error}"))
            continue
        if task.name in tasks:
            raise ConfigError(f"tasks.{position}", given=reference, action=f"a task named {task.name} is listed before it")
        starts = task.starting_kernels or config.seeds.get(task.name, ())
        cases = task.training_cases[: config.evaluation.training_cases]
        tasks[task.name] = dataclasses.replace(task, training_cases=cases, starting_kernels=starts)
    if wrong:
        raise TaskErrors.of(wrong)
    return tasks


def task_setups(config: RunConfig, *, check: bool = True) -> tuple[TaskSetup, ...]:
    """The tasks as the engine takes them, with their starting kernels and what operators may know.

    Args:
        config: Of the run.
        check: Whether the tasks are checked.

    Raises:
        TaskError: One is missing or broken.
        ConfigError: A place of the library is missing.
    """
    library, earlier = read_library(config.library), read_earlier(config.library)
    tasks = load_tasks(config, check=check).values()
    return tuple(_setup(task, config.target, library, earlier.get(task.kind, {})) for task in tasks)


def operator_infos(config: RunConfig) -> tuple[OperatorInfo, ...]:
    """The run's operators as the engine takes them.

    Raises:
        ConfigError: An unknown one, or one that needs a model without one.
    """
    known = find_operators()
    classes = [known[name] for name in operator_names(config)]
    return tuple(OperatorInfo(cls.name, cls.kind, cls.arity, cls.needs_model, is_chainable(cls)) for cls in classes)


def check_models(config: RunConfig) -> None:
    """Checks the configuration of models, but for keys: those are in the environment of whoever makes the proposals.

    Raises:
        ConfigError: An unknown provider or option, or two models of one label.
    """
    labels: set[str] = set()
    for position, section in enumerate(config.models):
        if given := [label for label in section.arms if label in labels]:
            raise ConfigError(
                f"models.{position}.label", given=given[0], action="another model has it: give each a label of its own"
            )
        if len(section.arms) < len(section.grammar):
            raise ConfigError(f"models.{position}.grammar", given=list(section.grammar), action="name each form once")
        labels |= set(section.arms)
        check_model(section.provider, section.options, f"models.{position}")


def build_operators(
    config: RunConfig, account: Account | None = None, limiter_of: Callable[[ModelSection], Limiter] | None = None
) -> dict[str, dict[str, Operator]]:
    """Ready operators by name, and each by the label of its model; empty where it asks none.

    Args:
        config: The run.
        account: Pays for models; None for a budget of this process's own.
        limiter_of: The limiter of a model's endpoint; None for one of this process's own.

    Raises:
        InputError: A model cannot be used as configured, or its key is missing.
    """
    return operators_asking(config, build_models(config, account, limiter_of))


def build_models(
    config: RunConfig, account: Account | None = None, limiter_of: Callable[[ModelSection], Limiter] | None = None
) -> dict[str, Model]:
    """The models that operators ask, by label; see `build_operators`."""
    account = account or Ledger(config.budget.dollars, config.budget.tokens)
    models: dict[str, Model] = {}
    for section in config.models if any(cls.needs_model for cls in _classes(config)) else ():
        client = build_model(
            section.provider,
            section.name,
            ledger=account,
            limiter=limiter_of(section) if limiter_of else None,
            max_tokens=section.max_tokens,
            base_url=section.base_url,
            options=section.options,
        )
        models |= {label: _tier(client, form, section) for label, form in section.arms.items()}
    return models


def operators_asking(config: RunConfig, models: Mapping[str, Model]) -> dict[str, dict[str, Operator]]:
    """Operators as `build_operators` gives them, with models of whoever closes them."""
    return {
        cls.name: {label: _with_model(cls, model) for label, model in models.items()} if cls.needs_model else {"": cls()}
        for cls in _classes(config)
    }


def _classes(config: RunConfig) -> list[type[Operator]]:
    known = find_operators()
    return [known[name] for name in operator_names(config)]


def _tier(client: Model, form: Form, section: ModelSection) -> TierModel:
    try:
        return TierModel(client, form, section.corrections)
    except ValueError as error:
        raise ConfigError(f"models: {section.provider} {section.name}", action=str(error)) from None


def _with_model(cls: type[Operator], model: object) -> Operator:
    build: type = cls  # an operator with `needs_model` takes its model by this name
    operator: Operator = build(model=model)
    return operator


def context_of(task: Task, target: str) -> Context:
    """What operators may know of a task, before any search of it."""
    from evo.tasks.loading import task_text

    return Context(
        task=task.name,
        description=task.description,
        entry=task.entry,
        reference_source=_source(task),
        allowed_operators=task.operators,
        target=target,
        triton_version=importlib.metadata.version("triton"),
        kind=task.kind,
        brief=task_text(task),
    )


def _setup(task: Task, target: str, library: tuple[Example, ...], earlier: Mapping[str, Arm]) -> TaskSetup:
    from evo.tasks.loading import starting_sources

    starts = tuple(Variant(task.name, source) for source in starting_sources(task))
    return TaskSetup(task, starts, context_of(task, target), library, earlier)


def _source(task: Task) -> str:
    from evo.tasks.loading import reference_source

    try:
        return reference_source(task)
    except (TypeError, OSError):  # a callable without source of its own, e.g. functools.partial
        return task.path.read_text(encoding="utf-8") if task.path else ""
