"""Says why a cheat passes, by judging it again with one thing put right at a time, and what to change in the task."""

from __future__ import annotations

import dataclasses
from typing import Any

from evo.evaluation.cheats.base import Cheat
from evo.evaluation.cheats.scene import Scene, same_bits
from evo.evaluation.judge import Judge
from evo.evaluation.oracle import Outputs
from evo.records import Failure
from evo.tasks.base import Tolerance


def cure_for(scene: Scene, forged: Outputs, cheat: Cheat, judge: Judge) -> tuple[str, str]:
    """Why these outputs pass, and the cure.

    Args:
        scene, forged, cheat: What passed.
        judge: It let them pass.
    """
    if cheat.honest_in_part:
        return "every case and draw is of the kind that it is right for", cheat.cure
    if same_bits(forged, scene.honest):
        return "that is the expected output there", cheat.cure
    loose = _loose(scene, forged, judge)
    if loose:
        given, usual = scene.task.tolerance, Tolerance()
        named = ", ".join(f"tolerance.{name} is {getattr(given, name)} (usual: {getattr(usual, name)})" for name in loose)
        return f"{named}, which is what lets it pass", f"a smaller {', '.join(f'tolerance.{name}' for name in loose)}"
    if scene.task.statistic is None and _stops(scene, forged, judge, {"ratio": 0.0}):
        return (
            "the reference itself errs as much there, and its error is the measure",
            "a more exact reference (accumulate in float32), or inputs on which its terms do not cancel",
        )
    return "it differs from the expected output by no more than rounding may", cheat.cure


def _loose(scene: Scene, forged: Outputs, judge: Judge) -> list[str]:
    """The fields of the tolerance but for which the outputs would not pass."""
    usual = {field.name: getattr(Tolerance(), field.name) for field in dataclasses.fields(Tolerance)}
    changed = [name for name, value in usual.items() if getattr(scene.task.tolerance, name) != value]
    alone = [name for name in changed if _stops(scene, forged, judge, {name: usual[name]})]
    return alone or (changed if _stops(scene, forged, judge, usual) else [])


def _stops(scene: Scene, forged: Outputs, judge: Judge, fields: dict[str, Any]) -> bool:
    tolerance = dataclasses.replace(scene.task.tolerance, **fields)
    verdict = judge.judge(dataclasses.replace(scene.task, tolerance=tolerance), scene.case, scene.draw, forged)
    return isinstance(verdict, Failure)
