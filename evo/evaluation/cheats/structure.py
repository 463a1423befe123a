"""Cheats that are honest in some of the cases or draws, and hand over zeros in the others."""

from __future__ import annotations

import dataclasses

import torch

from evo.evaluation.cheats.base import Cheat
from evo.evaluation.cheats.scene import Scene, shapes
from evo.evaluation.inputs import applicable_variations
from evo.evaluation.oracle import Outputs
from evo.tasks.base import TensorSpec
from evo.tasks.draws import Variation

TILE = 16
"""Sizes that are multiples of it need no mask in a kernel that was written without."""


def _honest_or_zeros(scene: Scene, honest: bool) -> Outputs:
    if honest:
        return scene.honest
    return Outputs(scene.honest.structure, tuple(torch.zeros_like(tensor) for tensor in scene.honest.tensors))


def _hard_coded(scene: Scene) -> Outputs:
    return _honest_or_zeros(scene, shapes(scene.case) in {shapes(case) for case in scene.task.training_cases})


def _whole_tiles(scene: Scene) -> Outputs:
    sizes = [item.shape for item in scene.case.arguments if isinstance(item, TensorSpec)]
    whole = all(
        size % TILE == 0 or size == 1 or (at < len(shape) - 1 and size < TILE) for shape in sizes for at, size in enumerate(shape)
    )
    return _honest_or_zeros(scene, whole)


def _plain_only(scene: Scene) -> Outputs | None:
    if not applicable_variations(dataclasses.replace(scene.task, variations=frozenset(Variation)), scene.case):
        return None  # there is nothing to vary: integers, say
    return _honest_or_zeros(scene, scene.draw.variation is Variation.PLAIN)


STRUCTURE_CHEATS = (
    Cheat(
        "right for the shapes of the training cases only",
        "hard-coded shapes",
        "give small and held-out cases of other shapes, odd ones among them",
        _hard_coded,
        honest_in_part=True,
    ),
    Cheat(
        f"right for multiples of {TILE} only",
        "missing masks",
        "give a small case with odd sizes, say 3 x 7, and a held-out case with a prime one",
        _whole_tiles,
        honest_in_part=True,
    ),
    Cheat(
        "right for the declared distribution only",
        "a fast path for the structure that the tests happen to have",
        "allow variations of the inputs in the task",
        _plain_only,
        honest_in_part=True,
    ),
)
