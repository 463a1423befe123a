"""Generate: a model writes a module from the task's description and reference alone."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from evo.records import NoProposal, Proposal
from operators.base import Context, Operator, OperatorKind, Parent
from operators.llm.asking import Asker
from operators.llm.notes import notes_text
from operators.models.base import Model


class LlmGenerate(Operator):
    """Sees no kernel of this task. Where a task has no reference to show, the description alone says what to compute.

    Args:
        model: Who is asked.
    """

    name: ClassVar[str] = "llm_generate"
    kind: ClassVar[OperatorKind] = OperatorKind.GENERATE
    arity: ClassVar[int] = 0
    needs_model: ClassVar[bool] = True

    def __init__(self, model: Model) -> None:
        self._asker = Asker(model, "generate")

    async def propose(self, parents: tuple[Parent, ...], context: Context, rng: np.random.Generator) -> Proposal | NoProposal:
        """See `Operator.propose`.

        Raises:
            SpendLimitError: There is no money for this or any further request.
        """
        return await self._asker.ask((), context, rng, edits=False, notes=notes_text(context, (), source=False))
