"""Drops steps of the prepare phase that nothing later needs, and refuses state that depends on a call's inputs."""

from __future__ import annotations

import dataclasses
from typing import Any

from evo.tracing.effects import references, storages_of, written_by
from evo.tracing.plan import Allocate, Copy, Fill, LaunchPlan, Operator, Step
from evo.tracing.recorder import Refused


def keep_needed(plan: LaunchPlan) -> LaunchPlan:
    """Keeps those prepare steps that write storages the later phases use, directly or through other prepare steps; renumbers
    storages, values and kernels by use, so that what was dropped leaves no trace in the plan hash.

    Raises:
        Refused: Such a storage depends on arguments or gradients: the module would answer from an earlier call's work.
    """
    made = {step.storage for step in plan.steps["prepare"] if isinstance(step, Allocate)}
    made |= {plan.values[r].storage for s in plan.steps["prepare"] if isinstance(s, Operator) for r in s.results if r is not None}
    later = [step for phase in ("forward", "backward") for step in plan.steps[phase]]
    touched = {storage for step in later for storage in storages_of(step, plan)}
    touched |= {plan.values[index].storage for index in references(plan.outputs)}
    own = {step.storage for step in later if isinstance(step, Allocate)}
    needed = (touched & made) - own
    inputs = {plan.values[s.value].storage for s in plan.sources if s.kind != "parameter"}
    kept: list[Step] = []
    for step in reversed(plan.steps["prepare"]):
        if needed.intersection(written_by(step, plan)):
            storages = set(storages_of(step, plan))
            if storages & inputs:
                raise Refused("the module keeps state from one call to the next that depends on the call's inputs")
            needed |= storages & made
            kept.append(step)
    return _renumber(dataclasses.replace(plan, steps={**plan.steps, "prepare": tuple(reversed(kept))}))


def _renumber(plan: LaunchPlan) -> LaunchPlan:
    values: dict[int, int] = {}
    storages: dict[int, int] = {}
    kernels: dict[int, int] = {}

    def value(index: int) -> int:
        storage(plan.values[index].storage)
        return values.setdefault(index, len(values))

    def storage(index: int) -> int:
        return storages.setdefault(index, len(storages))

    def tree(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: value(item) if key == "value" and isinstance(item, int) else tree(item) for key, item in node.items()}
        return type(node)(tree(item) for item in node) if isinstance(node, list | tuple) else node

    def step(item: Step) -> Step:
        if isinstance(item, Allocate):
            return Allocate(storage(item.storage))
        if isinstance(item, Fill):
            return Fill(value(item.value), item.scalar)
        if isinstance(item, Copy):
            return Copy(value(item.target), value(item.source))
        if isinstance(item, Operator):
            results = tuple(None if result is None else value(result) for result in item.results)
            return dataclasses.replace(item, arguments=tree(item.arguments), keywords=tree(item.keywords), results=results)
        return dataclasses.replace(item, kernel=kernels.setdefault(item.kernel, len(kernels)), arguments=tree(item.arguments))

    sources = tuple(dataclasses.replace(source, value=value(source.value)) for source in plan.sources)
    steps = {phase: tuple(map(step, items)) for phase, items in plan.steps.items()}
    outputs = tree(plan.outputs)
    gradients = tuple(None if item is None else value(item) for item in plan.gradients)
    renumbered = [dataclasses.replace(plan.values[index], storage=storages[plan.values[index].storage]) for index in values]
    return dataclasses.replace(
        plan,
        storages=tuple(plan.storages[index] for index in storages),
        values=tuple(renumbered),
        kernels=tuple(plan.kernels[index] for index in kernels),
        sources=sources,
        steps=steps,
        outputs=outputs,
        gradients=gradients,
    )
