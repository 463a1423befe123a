"""Explore: a model writes a deliberately different algorithm for what a parent computes."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from evo.records import NoProposal, Proposal
from operators.base import Context, Operator, OperatorKind, Parent
from operators.llm.asking import Asker
from operators.llm.evidence import parent_text
from operators.llm.notes import notes_text
from operators.models.base import Model


class LlmExplore(Operator):
    """Shows one module to differ from, and no other code: every further example would draw the answer towards itself.

    Args:
        model: Who is asked.
    """

    name: ClassVar[str] = "llm_explore"
    kind: ClassVar[OperatorKind] = OperatorKind.EXPLORE
    needs_model: ClassVar[bool] = True

    def __init__(self, model: Model) -> None:
        self._asker = Asker(model, "explore")

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
            edits=False,
            notes=notes_text(context, parents, examples=False, source=False),
            parent=parent_text(parent, "Present module"),
        )
