"""What a cheat is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from evo.evaluation.cheats.scene import Scene
from evo.evaluation.oracle import Outputs

Forge = Callable[[Scene], Outputs | None]


@dataclass(frozen=True)
class Cheat:
    """One cheat, ready to be tried on a task.

    Attributes:
        name: What is handed over, e.g. ``zeros for output 0``.
        models: The exploit that it stands for, in a few words.
        cure: What makes a task see it, where nothing nearer to the cause is found.
        forge: The outputs, or None where there is nothing to cheat with (the outputs would be what an honest kernel gives).
        honest_if_exact: Outputs that equal the honest ones bit by bit on varied inputs too are no cheat: the task asks for just that.
        honest_in_part: It is honest in some of the cases on purpose, so that a case which it passes says nothing about the case.
    """

    name: str
    models: str
    cure: str
    forge: Forge
    honest_if_exact: bool = False
    honest_in_part: bool = False
