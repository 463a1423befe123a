"""Repair: a model mends a failed child, seeing where and how it failed and what is known to cure such failures."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from evo.records import NoProposal, Proposal
from operators.base import Context, Operator, OperatorKind, Parent
from operators.llm.asking import Asker
from operators.llm.evidence import failure_text, gist
from operators.llm.notes import notes_text
from operators.models.base import Model


class LlmRepair(Operator):
    """Asks for the cause, the smallest change that removes it, and what it teaches.

    Reflections on failures, kept as text for later attempts: Shinn et al., 2023, "Reflexion: Language Agents with Verbal
    Reinforcement Learning".

    Args:
        model: Who is asked.
    """

    name: ClassVar[str] = "llm_repair"
    kind: ClassVar[OperatorKind] = OperatorKind.REPAIR
    needs_model: ClassVar[bool] = True

    def __init__(self, model: Model) -> None:
        self._asker = Asker(model, "repair")

    async def propose(self, parents: tuple[Parent, ...], context: Context, rng: np.random.Generator) -> Proposal | NoProposal:
        """See `Operator.propose`.

        Raises:
            SpendLimitError: There is no money for this or any further request.
        """
        (parent,) = parents
        message = parent.evaluation.message if parent.evaluation is not None else ""
        return await self._asker.ask(
            parents,
            context,
            rng,
            notes=notes_text(context, parents),
            failure=failure_text(parent),
            hints=self._asker.knowledge.for_evidence(message=gist(message)),
        )
