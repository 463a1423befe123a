"""A toy task and toy operators over flags and knobs, to drive the engine where there is neither device nor compiler.

With `evo.evaluation.simulated.SimulatedEvaluator` they make a whole search of any length on any machine: tests of engines and
clusters, and experiments on the search itself, use them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from evo.evaluation.simulated import read_structure
from evo.knobs import read_knobs
from evo.records import KnobValue, NoProposal, Proposal, Variant
from evo.search.setup import OperatorInfo, TaskSetup
from evo.tasks.base import Case, Task, TensorSpec
from operators.base import Context, Operator, OperatorKind, Parent

KNOBS = tuple(f"knob_{letter}" for letter in "abcdefgh")
FLAGS = tuple(f"FLAG_{letter}" for letter in "ABCDEFGH")
LEVELS = 4
"""Values of a knob: 0 to LEVELS − 1; flags are False or True."""


def render(genes: Mapping[str, KnobValue]) -> str:
    """A module with these flags and knobs; those left out are plain (False, 0)."""
    flags = "".join(f"{name} = {bool(genes.get(name, False))}\n" for name in FLAGS)
    knobs = {name: int(genes.get(name, 0)) for name in KNOBS}
    return f"{flags}CONFIG = {knobs}\n\n\ndef toy(x):\n    return x\n"


def genes_of(source: str) -> dict[str, KnobValue]:
    """Flags and knobs of a toy module.

    Raises:
        ValueError: It does not parse.
    """
    flags = {name: value for name, value in read_structure(source).items() if name in FLAGS}
    return {**flags, **{name: value for name, value in read_knobs(source).default.items() if name in KNOBS}}


def toy_setup(name: str = "toy", *, starts: tuple[str, ...] = ()) -> TaskSetup:
    """A task of toy modules, starting from the plain one unless other sources are given."""
    sources = starts or (render({}),)
    case = Case("simulated", (TensorSpec((1,), "float32"),), bytes=8, flops=0)
    task = Task(
        name=name,
        description="Return the argument.",
        entry="toy",
        reference=_identity,
        training_cases=(case,),
        held_out_cases=(),
        small_cases=(Case("small", (TensorSpec((1,), "float32"),), bytes=8, flops=0),),
        starting_kernels=sources,
        kind="toy",
    )
    context = Context(name, task.description, task.entry, "def toy(x): return x", frozenset(), "simulated", "none")
    return TaskSetup(task, tuple(Variant(name, source) for source in sources), context)


class ToyKnob(Operator):
    """Moves one knob one step."""

    name: ClassVar[str] = "toy_knob"
    kind: ClassVar[OperatorKind] = OperatorKind.MUTATION

    async def propose(self, parents: tuple[Parent, ...], context: Context, rng: np.random.Generator) -> Proposal | NoProposal:
        """See `Operator.propose`."""
        genes = genes_of(parents[0].variant.source)
        name = KNOBS[int(rng.integers(len(KNOBS)))]
        step = 1 if rng.random() < 0.5 else -1
        genes[name] = (int(genes[name]) + step) % LEVELS
        return Proposal(render(genes), f"{name} to {genes[name]}")


class ToyFlag(Operator):
    """Turns one flag."""

    name: ClassVar[str] = "toy_flag"
    kind: ClassVar[OperatorKind] = OperatorKind.MUTATION

    async def propose(self, parents: tuple[Parent, ...], context: Context, rng: np.random.Generator) -> Proposal | NoProposal:
        """See `Operator.propose`."""
        genes = genes_of(parents[0].variant.source)
        name = FLAGS[int(rng.integers(len(FLAGS)))]
        genes[name] = not genes[name]
        return Proposal(render(genes), f"{name} to {genes[name]}")


class ToyRepair(Operator):
    """Makes one gene plain again; does not apply to a module that is all plain."""

    name: ClassVar[str] = "toy_repair"
    kind: ClassVar[OperatorKind] = OperatorKind.REPAIR

    async def propose(self, parents: tuple[Parent, ...], context: Context, rng: np.random.Generator) -> Proposal | NoProposal:
        """See `Operator.propose`."""
        genes = genes_of(parents[0].variant.source)
        raised = sorted(name for name, value in genes.items() if value)
        if not raised:
            return NoProposal("every flag and knob is plain already")
        name = raised[int(rng.integers(len(raised)))]
        del genes[name]
        return Proposal(render(genes), f"{name} plain again")


class ToyCrossover(Operator):
    """Takes each gene from either parent, as likely (uniform crossover, Syswerda 1989)."""

    name: ClassVar[str] = "toy_crossover"
    kind: ClassVar[OperatorKind] = OperatorKind.CROSSOVER
    arity: ClassVar[int] = 2

    async def propose(self, parents: tuple[Parent, ...], context: Context, rng: np.random.Generator) -> Proposal | NoProposal:
        """See `Operator.propose`."""
        first, second = (genes_of(parent.variant.source) for parent in parents)
        child = {name: first[name] if rng.random() < 0.5 else second[name] for name in sorted(first)}
        if child in (first, second):
            return NoProposal("the mixture is one of the parents", failed=True)
        return Proposal(render(child), "genes of two")


class ToyDrift(Operator):
    """Gives one knob any of a million values: no search comes to an end of these modules."""

    name: ClassVar[str] = "toy_drift"
    kind: ClassVar[OperatorKind] = OperatorKind.MUTATION

    async def propose(self, parents: tuple[Parent, ...], context: Context, rng: np.random.Generator) -> Proposal | NoProposal:
        """See `Operator.propose`."""
        genes = genes_of(parents[0].variant.source)
        name = KNOBS[int(rng.integers(len(KNOBS)))]
        genes[name] = int(rng.integers(1_000_000))
        return Proposal(render(genes), f"{name} to {genes[name]}")


class ToyStamp(Operator):
    """Gives its parent a number that no other module has, at next to no cost: for measuring what surrounds operators."""

    name: ClassVar[str] = "toy_stamp"
    kind: ClassVar[OperatorKind] = OperatorKind.MUTATION

    async def propose(self, parents: tuple[Parent, ...], context: Context, rng: np.random.Generator) -> Proposal | NoProposal:
        """See `Operator.propose`."""
        number = int(rng.integers(1 << 62))
        source, _, _ = parents[0].variant.source.partition("# stamp")
        return Proposal(f"{source}# stamp {number}\n", f"stamp {number}")


TOY_OPERATORS: tuple[Operator, ...] = (ToyKnob(), ToyFlag(), ToyRepair(), ToyCrossover())
DRIFT_OPERATORS: tuple[Operator, ...] = (ToyDrift(), ToyFlag(), ToyRepair(), ToyCrossover())
"""For long searches."""


def infos(operators: tuple[Operator, ...] = TOY_OPERATORS) -> tuple[OperatorInfo, ...]:
    """What an engine is told of them."""
    return tuple(OperatorInfo(item.name, item.kind, item.arity, item.needs_model) for item in operators)


def _identity(x: object) -> object:
    return x
