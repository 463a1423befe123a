"""What a search is given besides settings: its tasks with their starting kernels, and which operators there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evo.records import Variant
from evo.search.bandit import Arm
from evo.tasks.base import Task
from operators.base import Context, Example, OperatorKind


@dataclass(frozen=True)
class TaskSetup:
    """One task of a run.

    Attributes:
        task: See `evo.tasks.base.Task`.
        starts: Starting kernels; without one, operators that generate make the first modules, and the first that passes is what
            all others are compared with.
        context: What operators may know of the task; history and tabu are filled in per request.
        library: Good kernels of elsewhere, for examples.
        earlier: What earlier runs tell of operators on this kind of kernel.
        held_out: Texts besides the reference that no example may hold, such as a suite's own answer to the task.
    """

    task: Task
    starts: tuple[Variant, ...]
    context: Context
    library: tuple[Example, ...] = ()
    earlier: Mapping[str, Arm] = field(default_factory=dict)
    held_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for variant in self.starts:
            if variant.task != self.task.name:
                raise ValueError(f"starting kernel of task {variant.task!r} given for task {self.task.name!r}")


@dataclass(frozen=True)
class OperatorInfo:
    """What the engine knows of an operator; the operator itself runs elsewhere.

    Attributes:
        name: Registered name.
        kind: When it may be chosen.
        arity: How many parents it takes.
        needs_model: Its proposals need a proposer with a language model.
        chainable: Proposers can make it a part of a chain, see `evo.search.chains`.
    """

    name: str
    kind: OperatorKind
    arity: int = 1
    needs_model: bool = False
    chainable: bool = False

    def __post_init__(self) -> None:
        wanted = {OperatorKind.GENERATE: self.arity == 0, OperatorKind.RESTART: self.arity == 1}.get(self.kind, self.arity >= 1)
        if not wanted or self.name == "start":
            raise ValueError(
                f"operator {self.name!r}, {self.kind} of arity {self.arity}: "
                "allowed: arity 0 for generate, 1 for restart, from 1 for others; any name but 'start'"
            )
