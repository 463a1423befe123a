"""What a forger of outputs may look at: one case on one draw, the honest answer, and answers to other inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch

from evo.evaluation.inputs import Inputs, make_inputs
from evo.evaluation.oracle import Oracle, Outputs
from evo.tasks.base import Case, Task, TensorSpec
from evo.tasks.draws import Draw, Variation

OTHER = 0x5DEECE66D
"""Mixed into a seed, it gives the inputs of the call before: what stale memory or a replayed answer belongs to."""

Change = Callable[[Inputs], Inputs]
"""Makes the inputs that a wrong kernel effectively computes with."""


class Scene:
    """One case on one draw. Everything is computed when it is first asked for and then kept; nothing of it may be modified.

    Args:
        task, case, draw: Whose.
        oracle: Computes and keeps answers in the task's own dtypes; it may be shared by scenes.
    """

    def __init__(self, task: Task, case: Case, draw: Draw, oracle: Oracle) -> None:
        self.task, self.case, self.draw = task, case, draw
        self._oracle = oracle

    @cached_property
    def inputs(self) -> Inputs:
        """What a kernel would be called with."""
        return make_inputs(self.task, self.case, self.draw.seed, self._oracle.device, self.draw.variation)

    @cached_property
    def honest(self) -> Outputs:
        """What the reference gives."""
        return self._native(self.draw)

    @cached_property
    def stale(self) -> Outputs:
        """The answer to another seed, varied in the same way: what the memory of the last call still holds."""
        return self._native(Draw(self.draw.seed ^ OTHER, self.draw.variation))

    @cached_property
    def learned(self) -> Outputs:
        """The answer to another seed of the declared distribution: all that a kernel which looks at no input can know."""
        return self._native(Draw(self.draw.seed ^ OTHER, Variation.PLAIN))

    def answer(self, name: str, change: Change) -> Outputs | None:
        """What the reference gives on changed inputs (gradients included), None where it refuses them.

        Args:
            name: Identifies the change among those of the task.
            change: May return the tensors of its inputs themselves, but not write into them.
        """
        task, module = self.task, self.task.form == "module"

        def wrong(*arguments: Any) -> Any:
            parameters, positional = (arguments[0], arguments[1:]) if module else ({}, arguments)
            changed = change(Inputs(tuple(positional), parameters))
            return task.reference(*((changed.parameters,) if module else ()), *changed.arguments)

        # Any text becomes part of an identifier, and different ones stay different: answers are kept by the task's name.
        changed_task = dataclasses.replace(task, name=f"{task.name}_{name.encode().hex()}", reference=wrong)
        try:
            return self._native(self.draw, changed_task)
        except (RuntimeError, ValueError, TypeError, IndexError, ArithmeticError):
            return None  # the reference does not take such inputs, so no kernel computes with them

    @property
    def places(self) -> tuple[str, ...]:
        """What each flattened output is, in words."""
        mutated = [f"argument {position} (updated in place)" for position in self.task.mutates]
        gradients = [f"gradient {number}" for number in range(len(self.inputs.differentiable()))] if self.task.backward else []
        returned = len(self.honest.tensors) - len(mutated) - len(gradients)
        return (*(f"output {index}" for index in range(returned)), *mutated, *gradients)

    @property
    def mutated(self) -> dict[int, int]:
        """Position among the flattened outputs → the argument that is updated there."""
        first = sum(place.startswith("output") for place in self.places)
        return {first + number: position for number, position in enumerate(self.task.mutates)}

    def with_output(self, index: int, tensor: torch.Tensor) -> Outputs:
        """The honest outputs but for one."""
        tensors = list(self.honest.tensors)
        tensors[index] = tensor
        return Outputs(self.honest.structure, tuple(tensors))

    def _native(self, draw: Draw, task: Task | None = None) -> Outputs:
        task = task or self.task
        native = dataclasses.replace(task, oracle="reference") if task.oracle == "pytorch64" else task
        return self._oracle.expected(native, self.case, draw).reference


def same_bits(a: Outputs, b: Outputs) -> bool:
    """Whether both hold equal values, NaN being equal to NaN."""
    pairs = zip(a.tensors, b.tensors, strict=True)
    return all(x.shape == y.shape and bool(torch.all((x == y) | ((x != x) & (y != y)))) for x, y in pairs)


def shapes(case: Case) -> tuple[object, ...]:
    """All that a kernel of hard-coded shapes looks at: shapes, dtypes and strides of tensors."""
    return tuple(
        (item.shape, item.dtype, item.element_strides) if isinstance(item, TensorSpec) else None for item in case.arguments
    )
