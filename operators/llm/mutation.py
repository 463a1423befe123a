"""LLM mutation: a model rewrites one parent, seeing its figures, the history and what was abandoned."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from evo.records import NoProposal, Proposal
from operators.base import Context, Operator, OperatorKind, Parent
from operators.llm.asking import PromptFiles, ask
from operators.llm.evidence import history_text, parent_text, tabu_text
from operators.models.base import Model


class LlmMutation(Operator):
    """Asks for one substantial change. The history stands in ascending order, so that the best example is nearest the question.

    Showing a model earlier solutions sorted by score: Yang et al., 2023, "Large Language Models as Optimizers".

    Args:
        model: Who is asked.
    """

    name: ClassVar[str] = "llm_mutation"
    kind: ClassVar[OperatorKind] = OperatorKind.MUTATION
    needs_model: ClassVar[bool] = True

    def __init__(self, model: Model) -> None:
        self._model = model
        self._files = PromptFiles.load("mutation")

    async def propose(self, parents: tuple[Parent, ...], context: Context, rng: np.random.Generator) -> Proposal | NoProposal:
        """See `Operator.propose`.

        Raises:
            SpendLimitError: There is no money for this or any further request.
        """
        (parent,) = parents
        prompt = self._files.prompt(
            context,
            rng,
            self._model.max_tokens,
            history=history_text(context.history, parents),
            tabu=tabu_text(context.tabu),
            parent=parent_text(parent, "Present module"),
        )
        return await ask(self._model, prompt, parents, context)
