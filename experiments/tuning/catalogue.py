"""What is measured: kernels of different kinds, each with a space of at least 200 configurations, on one case of a real model's size.

They are not the starting kernels of the same tasks, whose spaces are smaller and whose grids follow `CONFIG`: here a launch has one
jitted function and a grid that follows META, so that Triton's autotuner can tune the very same kernel.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from dataclasses import dataclass
from pathlib import Path

from evo.knobs import Knobs, read_knobs
from evo.records import Configuration
from evo.tasks.base import Case, Task
from evo.tasks.loading import load_task

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Subject:
    """One kernel on one case.

    Attributes:
        name: Of the kernel module in `kernels`, and of its task.
        case: Name of a case of the task.
        builtin: Whether the task is one of the package; else it lies in `tasks`.
        tunable_launches: Whether Triton's autotuner can tune it: not where a knob decides what a second launch gets.
    """

    name: str
    case: str
    builtin: bool = False
    tunable_launches: bool = True

    @property
    def source(self) -> str:
        """The kernel module."""
        return (HERE / "kernels" / f"{self.name}.py").read_text(encoding="utf-8")

    def load(self) -> tuple[Task, Case]:
        """The task, and the case with its full arguments.

        Raises:
            TaskError: The task is broken.
            KeyError: It has no such case.
        """
        task = load_task(self.name if self.builtin else str(HERE / "tasks" / f"{self.name}.py"))
        return task, task.case(self.case)


SUBJECTS: tuple[Subject, ...] = (
    Subject("softmax", "4096x32000_bfloat16", builtin=True),
    Subject("gemm", "4096x4096x4096"),
    Subject("transpose", "8192x8192"),
    Subject("attention", "b8_h16_s1024_d64", builtin=True),
    Subject("row_sum", "8192x8192"),
    Subject("cumsum", "4096x16384"),
    Subject("rms_norm", "16384x3584", builtin=True),
    Subject("gemm_bias_gelu", "4096x4096x1024", builtin=True),
    Subject("swiglu", "4096x14336", builtin=True),
    Subject("quantize_rows", "4096x14336_bfloat16", builtin=True),
    Subject("layer_norm", "8192x4096"),
    Subject("column_sum", "16384x4096", tunable_launches=False),
    Subject("matvec", "28672x4096"),
)
"""In the order in which they are measured: should time run out, the first ten are of ten kinds."""


def subjects(names: list[str] | None) -> tuple[Subject, ...]:
    """Those of the names given, all without names.

    Raises:
        ValueError: A name that there is not.
    """
    unknown = set(names or ()) - {subject.name for subject in SUBJECTS}
    if unknown:
        known = ", ".join(subject.name for subject in SUBJECTS)
        raise ValueError(f"no kernel {', '.join(sorted(unknown))}; there are {known}")
    return tuple(subject for subject in SUBJECTS if not names or subject.name in names)


def configurations(knobs: Knobs) -> list[Configuration]:
    """The full grid, in the order of the space."""
    names = list(knobs.space)
    return [
        Configuration({**knobs.default, **dict(zip(names, values, strict=True))})
        for values in itertools.product(*knobs.space.values())
    ]


def cut_down(knobs: Knobs, values: int | None, seed: int = 0) -> Knobs:
    """A smaller grid of the same kind: at most so many values of each knob, the declared one among them; all if None."""
    if values is None:
        return knobs
    draw = random.Random(seed)
    space = {}
    for name, choices in sorted(knobs.space.items()):
        others = [choice for choice in choices if choice != knobs.default[name]]
        kept = {knobs.default[name], *draw.sample(others, min(len(others), values - 1))}
        space[name] = tuple(choice for choice in choices if choice in kept)
    return dataclasses.replace(knobs, space=space)


def knobs_of(subject: Subject, values: int | None = None) -> Knobs:
    """What its module declares, cut down to so many values per knob."""
    return cut_down(read_knobs(subject.source), values)
