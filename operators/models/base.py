"""The contract of a language model: a prompt goes in, a recorded exchange comes out.

To add one: a file in this package named after the provider, with one public subclass of `Model` whose `provider` is that name;
configurations find it by that name (`operators.models.building`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from evo.errors import ModelError
from evo.records import Exchange, content_id
from operators.grammar.forms import Grammar

Form = Literal["none", "module", "skeleton"]
"""What a model's replies are held to: nothing, any module, or the first parent's module with free bodies of kernels."""


@dataclass(frozen=True)
class Prompt:
    """What a model is asked.

    Attributes:
        stable: Blocks that come first and repeat from request to request, the most widely shared one first, so that an endpoint
            can cache them.
        body: What is particular to this request.
        template_hash: Hash of the prompt files it was rendered from (`operators.prompting.Template.hash`).
        max_tokens: Longest reply, tokens, thinking included.
        grammar: What the reply has to match; None for any text. A model that `supports_grammar` passes it on, in the notation of its
            server, every other one ignores it: whoever asks checks the reply in any case.
        request: Names the question within a run, whoever asks it and however often; empty outside of runs. No part of what is asked.
    """

    stable: tuple[str, ...]
    body: str
    template_hash: str
    max_tokens: int
    grammar: Grammar | None = None
    request: str = ""

    def __post_init__(self) -> None:
        if not self.body.strip() or not all(block.strip() for block in self.stable):
            raise ValueError("a prompt has a body, and no block of it is blank")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens {self.max_tokens} must be positive")

    @property
    def text(self) -> str:
        """All blocks as one text, as it is stored."""
        return "\n\n".join((*self.stable, self.body))

    @property
    def prompt_hash(self) -> str:
        """Content hash over all blocks, and over the grammar where there is one."""
        return content_id(*self.stable, self.body, *((self.grammar.hash,) if self.grammar else ()))


class RequestError(ModelError):
    """A request that got no usable answer; `exchange` records what was asked, received and paid (stop reason ``error``)."""

    def __init__(self, message: str, exchange: Exchange) -> None:
        super().__init__(message)
        self.message = message
        self.exchange = exchange

    def __reduce__(self) -> tuple[type[RequestError], tuple[str, Exchange]]:
        return RequestError, (self.message, self.exchange)


class Model(ABC):
    """One language model behind one endpoint. Safe to use from several tasks at once; holds no state of a search.

    Class attributes:
        provider: What configurations call the endpoint; also the name of the module in `operators.models`.

    A client takes, besides its own options, the keyword arguments `ledger`, `limiter`, `max_tokens` and `base_url`; it asks the
    limiter and then the ledger before every attempt (`operators.models.attempts`).

    Args:
        name: Model name as the endpoint knows it.
        max_tokens: Longest reply that operators ask it for.
    """

    provider: ClassVar[str]

    def __init__(self, name: str, *, max_tokens: int = 16_000) -> None:
        if not name or max_tokens < 1:
            raise ValueError(f"model name {name!r} must not be empty and max_tokens {max_tokens} must be positive")
        self._name = name
        self._max_tokens = max_tokens

    @property
    def name(self) -> str:
        """Model name as the endpoint knows it."""
        return self._name

    @property
    def max_tokens(self) -> int:
        """Longest reply that operators ask it for, tokens."""
        return self._max_tokens

    @property
    def least_dollars(self) -> float:
        """What has to be set aside for the shortest prompt with a reply of `max_tokens`; 0 where nothing is billed."""
        return 0.0

    @property
    def supports_grammar(self) -> bool:
        """Whether its server lets no reply through that does not match the grammar of a prompt."""
        return False

    @property
    def form(self) -> Form:
        """What its replies shall be held to."""
        return "none"

    @property
    def corrections(self) -> int:
        """Turns about a reply that cannot be used."""
        return 1

    @abstractmethod
    async def complete(self, prompt: Prompt) -> Exchange:
        """Asks once. The reply holds text blocks only: never thinking, tool calls or error pages.

        Returns:
            The exchange, also where the model refused or was cut off: callers look at `stop_reason` before they use the reply.

        Raises:
            RequestError: The endpoint gave no answer within the allowed time and retries; what it cost is in its `exchange`.
            SpendLimitError: The account or the budget has no money for it; nothing more should be asked.
            ModelError: It failed before anything was sent.
        """

    async def close(self) -> None:
        """Gives up connections of the running event loop. Idempotent."""
        return

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"{self!r} stays in its process, as do its key and its budget: build it where it is used")
