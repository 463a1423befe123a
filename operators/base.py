"""The contract of an operator: how one or more variants become another.

An operator is small, stateless after construction, and knows no store, device or clock. To add one: a file with one public
subclass of `Operator`; it is found by `name` (or through the entry point group ``triton_evolve.operators``), and
`tests/operators_tests/test_contract.py` picks it up by itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

import numpy as np

from evo.records import Evaluation, NoProposal, Proposal, Variant


class OperatorKind(StrEnum):
    """When the engine may choose an operator.

    MUTATION, CROSSOVER: of variants that passed. REPAIR: of a variant that failed. EXPLORE: of one that passed, for a different
    algorithm instead of a better version. RESTART: for the first child of a lineage that replaces an abandoned one, of its root.
    GENERATE: for the same first child, of no parent at all.
    """

    MUTATION = "mutation"
    CROSSOVER = "crossover"
    REPAIR = "repair"
    EXPLORE = "explore"
    RESTART = "restart"
    GENERATE = "generate"


@dataclass(frozen=True)
class Parent:
    """A variant with what is known about it; `evaluation` is None where it has not been evaluated."""

    variant: Variant
    evaluation: Evaluation | None = None
    strategy: str = ""


@dataclass(frozen=True)
class Example:
    """A good kernel of another task, another run or a folder, shown as an example.

    Attributes:
        source: Its module.
        origin: Where it is from, for people and models, e.g. ``task rms_norm of this run``.
        speedup: Over its own baseline; 0 where nothing is known.
    """

    source: str
    origin: str
    speedup: float = 0.0


@dataclass(frozen=True)
class Context:
    """What an operator may know besides the parents.

    Attributes:
        task: Task name.
        description: The task in plain language.
        entry: Name every module must define.
        reference_source: Source text of the PyTorch reference; empty where there is none to show.
        allowed_operators: Torch operators a module may use.
        target: ``cuda:90``, ``hip:gfx942`` …
        triton_version: The version kernels are compiled with.
        history: Other evaluated variants of the lineage and island, ascending by measured performance.
        tabu: Strategy summaries that were abandoned.
        kind: Kernel kind of the task, e.g. ``reduction``.
        brief: Everything a writer of kernels may know of the task (entry, cases that are timed, exactness …), in place of the
            description alone where it is given.
        examples: Good kernels similar to the first parent, most similar first.
        lessons: What failures in the lineage taught, newest last.
        worked: Strategies that measurably gained on any island of the task, newest last.
        request: The number of the request in its run, equal in every attempt to answer it; None outside of runs.
    """

    task: str
    description: str
    entry: str
    reference_source: str
    allowed_operators: frozenset[str]
    target: str
    triton_version: str
    history: tuple[Parent, ...] = ()
    tabu: tuple[str, ...] = field(default=())
    kind: str = "other"
    brief: str = ""
    examples: tuple[Example, ...] = ()
    lessons: tuple[str, ...] = ()
    worked: tuple[str, ...] = ()
    request: int | None = None


class Operator(ABC):
    """Turns parents into a proposal.

    Class attributes:
        name: Unique, snake_case; what configurations and stores use.
        kind: When the engine may choose it.
        arity: How many parents it takes; none for GENERATE alone.
        needs_model: It talks to a language model (and so runs in a proposer that owns one).
    """

    name: ClassVar[str]
    kind: ClassVar[OperatorKind]
    arity: ClassVar[int] = 1
    needs_model: ClassVar[bool] = False

    @abstractmethod
    async def propose(self, parents: tuple[Parent, ...], context: Context, rng: np.random.Generator) -> Proposal | NoProposal:
        """Makes one child. A pure function of its arguments (and, where `needs_model`, of the model's replies).

        Args:
            parents: Exactly `arity` parents.
            context: See `Context`.
            rng: The only source of randomness.

        Returns:
            A proposal whose source differs from every parent's, or a NoProposal that says why there is none.
        """
