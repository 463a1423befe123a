"""A model as one tier of a search: which form of grammar its replies are held to, and how many turns it has to mend one."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import ClassVar

from evo.exchanges import HELD, LEFT
from evo.records import Exchange
from operators.grammar.check import violation
from operators.models.base import Form, Model, Prompt


class TierModel(Model):
    """Another model, whose exchanges say whether the reply keeps to the grammar that was sent: servers ignore what they do not know.

    Args:
        model: Who answers. Tiers of one model share it.
        form: What its replies are held to.
        corrections: Turns about a reply that cannot be used.

    Raises:
        ValueError: The model cannot be held to a grammar.
    """

    provider: ClassVar[str] = "tier"

    def __init__(self, model: Model, form: Form = "none", corrections: int = 1) -> None:
        super().__init__(model.name, max_tokens=model.max_tokens)
        if form != "none" and not model.supports_grammar:
            raise ValueError(f"grammar: {form} needs a model that takes one: options.server says which server it is")
        if not 0 <= corrections <= 10:
            raise ValueError(f"corrections {corrections} must be 0 … 10")
        self._model = model
        self._form = form
        self._corrections = corrections

    @property
    def form(self) -> Form:
        """What its replies are held to."""
        return self._form

    @property
    def corrections(self) -> int:
        """Turns about a reply that cannot be used."""
        return self._corrections

    @property
    def supports_grammar(self) -> bool:
        """As the model itself."""
        return self._model.supports_grammar

    @property
    def least_dollars(self) -> float:
        """As the model itself."""
        return self._model.least_dollars

    async def complete(self, prompt: Prompt) -> Exchange:
        """See `Model.complete`."""
        exchange = await self._model.complete(prompt)
        if prompt.grammar is None or exchange.stop_reason not in ("end_turn", "stop_sequence"):
            return exchange
        found = await asyncio.to_thread(violation, exchange.reply, prompt.grammar)
        return dataclasses.replace(exchange, grammar=LEFT if found else HELD)

    async def close(self) -> None:
        """As the model itself."""
        await self._model.close()
