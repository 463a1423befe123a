"""LLM crossover: a model combines the strengths of two parents in one module."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from evo.records import NoProposal, Proposal
from operators.base import Context, Operator, OperatorKind, Parent
from operators.llm.asking import PromptFiles, ask
from operators.llm.evidence import history_text, parent_text, tabu_text
from operators.models.base import Model


class LlmCrossover(Operator):
    """Shows both parents with their figures per case, so that the model can see which technique pays where.

    A language model as the crossover of two programs: Meyerson et al., 2023, "Language Model Crossover: Variation through Few-Shot
    Prompting".

    Args:
        model: Who is asked.
    """

    name: ClassVar[str] = "llm_crossover"
    kind: ClassVar[OperatorKind] = OperatorKind.CROSSOVER
    arity: ClassVar[int] = 2
    needs_model: ClassVar[bool] = True

    def __init__(self, model: Model) -> None:
        self._model = model
        self._files = PromptFiles.load("crossover")

    async def propose(self, parents: tuple[Parent, ...], context: Context, rng: np.random.Generator) -> Proposal | NoProposal:
        """See `Operator.propose`.

        Raises:
            SpendLimitError: There is no money for this or any further request.
        """
        first, second = parents
        if first.variant.source == second.variant.source:
            return NoProposal("both parents are the same module")
        prompt = self._files.prompt(
            context,
            rng,
            self._model.max_tokens,
            history=history_text(context.history, parents),
            tabu=tabu_text(context.tabu),
            first=parent_text(first, "Module A"),
            second=parent_text(second, "Module B"),
        )
        return await ask(self._model, prompt, parents, context)
