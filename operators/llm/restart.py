"""Restart: a model begins a new lineage with a strategy unlike those that were given up."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from evo.records import NoProposal, Proposal
from operators.base import Context, Operator, OperatorKind, Parent
from operators.llm.asking import Asker
from operators.llm.evidence import parent_text
from operators.llm.notes import notes_text
from operators.models.base import Model

ALIKE = 0.6
"""Share of two strategies' words that are the same from which on they count as one."""

LEAST = 3
"""Words that two strategies share at least if they are not all the same: short ones share ``kernel`` by chance."""

_WORD = re.compile(r"[a-z0-9_]{3,}")
_COMMON = frozenset({"and", "for", "from", "instead", "into", "that", "the", "this", "use", "using", "with"})


class LlmRestart(Operator):
    """Shows the root of the new lineage and all abandoned strategies, and does not accept one of those in almost the same words.

    Args:
        model: Who is asked.
    """

    name: ClassVar[str] = "llm_restart"
    kind: ClassVar[OperatorKind] = OperatorKind.RESTART
    needs_model: ClassVar[bool] = True

    def __init__(self, model: Model) -> None:
        self._asker = Asker(model, "restart")

    async def propose(self, parents: tuple[Parent, ...], context: Context, rng: np.random.Generator) -> Proposal | NoProposal:
        """See `Operator.propose`.

        Raises:
            SpendLimitError: There is no money for this or any further request.
        """
        (root,) = parents
        return await self._asker.ask(
            parents,
            context,
            rng,
            edits=False,
            objection=lambda strategy: repetition(strategy, context.tabu),
            notes=notes_text(context, parents, examples=False, source=False),
            parent=parent_text(root, "Present module"),
        )


def repetition(strategy: str, tabu: Iterable[str]) -> str:
    """Says which abandoned strategy this one is in other words; empty where it is new."""
    words = _words(strategy)
    for abandoned in tabu:
        others = _words(abandoned)
        shared = len(words & others)
        if words and (words == others or (shared >= LEAST and shared >= ALIKE * min(len(words), len(others)))):
            return f"its strategy was abandoned before ({' '.join(abandoned.split())}); name and follow another one"
    return ""


def _words(strategy: str) -> frozenset[str]:
    return frozenset(_WORD.findall(strategy.lower())) - _COMMON
