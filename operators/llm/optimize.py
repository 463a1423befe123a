"""Optimize: a model improves one parent that works, seeing its figures, what limits it, and what was tried."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from evo.records import NoProposal, Proposal
from operators.base import Context, Operator, OperatorKind, Parent
from operators.llm.asking import Asker
from operators.llm.evidence import bounds, parent_text
from operators.llm.notes import notes_text
from operators.models.base import Model


class LlmOptimize(Operator):
    """Asks for one substantial change. The history stands in ascending order, so that the best example is nearest the question.

    Showing a model earlier solutions sorted by score: Yang et al., 2023, "Large Language Models as Optimizers".

    Args:
        model: Who is asked.
    """

    name: ClassVar[str] = "llm_optimize"
    kind: ClassVar[OperatorKind] = OperatorKind.MUTATION
    needs_model: ClassVar[bool] = True

    def __init__(self, model: Model) -> None:
        self._asker = Asker(model, "optimize")

    async def propose(self, parents: tuple[Parent, ...], context: Context, rng: np.random.Generator) -> Proposal | NoProposal:
        """See `Operator.propose`.

        Raises:
            SpendLimitError: There is no money for this or any further request.
        """
        (parent,) = parents
        return await self._asker.ask(
            parents,
            context,
            rng,
            notes=notes_text(context, parents),
            parent=parent_text(parent, "Present module"),
            hints=self._asker.knowledge.for_evidence(bounds=bounds(parent.evaluation)[:1]),
        )
