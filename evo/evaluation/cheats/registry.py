"""Lists the cheats that can be tried on a task; a new one is a row of `outputs`, `wrong_inputs` or `structure`."""

from __future__ import annotations

from evo.evaluation.cheats.base import Cheat
from evo.evaluation.cheats.outputs import forged_outputs
from evo.evaluation.cheats.scene import Scene
from evo.evaluation.cheats.structure import STRUCTURE_CHEATS
from evo.evaluation.cheats.wrong_inputs import wrong_inputs


def cheats_for(scene: Scene) -> tuple[Cheat, ...]:
    """Every cheat that can be tried on the task of a scene, whose outputs and arguments tell which there are."""
    found: list[Cheat] = []
    for index in range(len(scene.places)):
        found += forged_outputs(scene, index)
    if scene.task.statistic is None:  # where outputs are random, another sample is as good as this one
        found += wrong_inputs(scene)
    return (*found, *STRUCTURE_CHEATS)
