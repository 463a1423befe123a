"""The evaluator's door to inputs; they are made in `evo.tasks.inputs` because checking a task file needs them too."""

from __future__ import annotations

from evo.tasks.inputs import (
    Inputs,
    applicable_variations,
    differentiable_places,
    make_grad_outputs,
    make_inputs,
    to_float64,
)

__all__ = ["Inputs", "applicable_variations", "differentiable_places", "make_grad_outputs", "make_inputs", "to_float64"]
