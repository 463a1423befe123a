"""A chain: several moves made one after the other, as one proposal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evo.records import NoProposal, Proposal, Variant
from operators.base import Context, Operator, OperatorKind, Parent

ATTEMPTS = 4
"""Times the first move is made anew where a later one does not apply to what it gave: it may have other places."""


def is_chainable(operator: Operator | type[Operator]) -> bool:
    """Whether it may be a part of a chain: a mutation of one parent that asks no model."""
    return operator.kind is OperatorKind.MUTATION and operator.arity == 1 and not operator.needs_model


class Chain(Operator):
    """The child of the child of the parent, and so on; nothing in between is evaluated.

    So a search gets over a step that gains nothing by itself, or costs, and saves its evaluation. No operator of the registry: a search
    makes chains of what it saw help.

    Args:
        operators: In the order in which they are applied, two or more; each takes one parent and asks no model.
    """

    kind = OperatorKind.MUTATION

    def __init__(self, operators: Sequence[Operator]) -> None:
        if len(operators) < 2 or not all(map(is_chainable, operators)):
            raise ValueError(
                f"a chain of {', '.join(item.name for item in operators)}: "
                "allowed: two or more mutations of one parent that ask no model"
            )
        self._operators = tuple(operators)

    async def propose(self, parents: tuple[Parent, ...], context: Context, rng: np.random.Generator) -> Proposal | NoProposal:
        """One child, or the reason of the last move that had none."""
        outcome = await self._once(parents, context, rng)
        for _ in range(ATTEMPTS - 1):
            if not isinstance(outcome, NoProposal):
                break
            outcome = await self._once(parents, context, rng)
        return outcome

    async def _once(self, parents: tuple[Parent, ...], context: Context, rng: np.random.Generator) -> Proposal | NoProposal:
        made, strategies = parents[0], list[str]()
        for operator in self._operators:
            outcome = await operator.propose((made,), context, rng)
            if isinstance(outcome, NoProposal):
                return outcome
            made = Parent(Variant(made.variant.task, outcome.source), None, outcome.strategy)
            strategies.append(outcome.strategy)
        if made.variant.source == parents[0].variant.source:
            return NoProposal(f"{' and '.join(item.name for item in self._operators)} undo each other")
        return Proposal(made.variant.source, "; then ".join(strategies))
