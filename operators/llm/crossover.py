"""Crossover: a model combines the strengths of two parents in one module."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from evo.records import NoProposal, Proposal
from operators.base import Context, Operator, OperatorKind, Parent
from operators.llm.asking import Asker
from operators.llm.evidence import parent_text, strengths_text
from operators.llm.notes import notes_text
from operators.models.base import Model

TITLES = ("Module A", "Module B", "Module C")


class LlmCrossover(Operator):
    """Shows all parents with their figures per case, so that the model can see which technique pays where.

    A language model as the crossover of programs: Meyerson et al., 2023, "Language Model Crossover: Variation through Few-Shot
    Prompting".

    Args:
        model: Who is asked.
    """

    name: ClassVar[str] = "llm_crossover"
    kind: ClassVar[OperatorKind] = OperatorKind.CROSSOVER
    arity: ClassVar[int] = 2
    needs_model: ClassVar[bool] = True

    def __init__(self, model: Model) -> None:
        self._asker = Asker(model, "crossover")

    async def propose(self, parents: tuple[Parent, ...], context: Context, rng: np.random.Generator) -> Proposal | NoProposal:
        """See `Operator.propose`.

        Raises:
            SpendLimitError: There is no money for this or any further request.
        """
        if len({parent.variant.source for parent in parents}) < len(parents):
            return NoProposal("two parents are the same module")
        titles = TITLES[: len(parents)]
        return await self._asker.ask(
            parents,
            context,
            rng,
            edits=False,
            notes=notes_text(context, parents),
            modules="\n\n".join(parent_text(parent, title) for parent, title in zip(parents, titles, strict=True)),
            strengths=strengths_text(parents, titles),
        )
