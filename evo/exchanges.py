"""What was asked of a language model, what it answered and what that cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from evo.plain import Record

REFUSAL = "refusal"
"""Stop reason of an exchange whose model would not answer."""

NO_ANSWER = "error"
"""Stop reason of an exchange whose endpoint gave no whole answer: an outage, an overload, a refused key."""

KEY_ENDINGS = ("_API_KEY", "_AUTH_TOKEN", "_CUSTOM_HEADERS")
"""How the environment variables end that hold keys of models, or headers, of which one may be a key."""


HELD, LEFT = "held", "left"
"""What is said of a whole reply to a request with a grammar: it keeps to it, or does not, which shows that the server ignored it."""


@dataclasses.dataclass(frozen=True)
class Usage(Record):
    """What a language-model exchange cost. Tokens are counts, money is US dollars.

    Attributes:
        claimed_tokens: What the endpoint said where that cannot be: more than the request and its longest reply have. All else is then
            the most that can be. 0 where it is believed.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    dollars: float = 0.0
    claimed_tokens: int = 0

    @property
    def tokens(self) -> int:
        """All tokens, read and written, cached or not."""
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens


@dataclasses.dataclass(frozen=True)
class Exchange(Record):
    """One request to a language model and its reply, stored before the reply is acted on.

    Attributes:
        model: Model name as sent.
        prompt_hash: `content_id` of the full prompt.
        template_hash: `content_id` of the prompt files it was rendered from.
        prompt, reply: Text; the reply holds text blocks only.
        stop_reason: As the endpoint gave it (``end_turn``, ``max_tokens``, ``refusal`` …) or ``error``.
        request_id: The endpoint's id of the request, for support.
        latency_s: Wall seconds.
        grammar: ``held`` or ``left``, where the request had a grammar and the reply is whole; else empty.
    """

    model: str
    prompt_hash: str
    template_hash: str
    prompt: str
    reply: str
    stop_reason: str
    request_id: str
    latency_s: float
    usage: Usage
    grammar: str = ""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
        return cls(**{**data, "usage": Usage.from_json(data["usage"])})
