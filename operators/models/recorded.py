"""A model that answers from a cassette, without an endpoint, a key or a bill.

A search that asks the same in the same order runs again as it went; docs/llm.md says when it does.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from evo.errors import InputError
from evo.records import Exchange, Usage
from operators.models.base import Model, Prompt, RequestError
from operators.models.ledger import Account
from operators.models.limits import Limiter
from operators.models.recording import request_key


@dataclass(frozen=True)
class _Answer:
    exchange: Exchange
    error: str | None


class RecordedModel(Model):
    """Gives equal requests the answers that were recorded for them, in order; a request beyond those fails.

    Nothing is paid; exchanges carry what they cost when they were recorded, so that a search comes to its end where it did.

    Args:
        name: Of the model that was recorded; answers of other models in the cassette are passed over.
        ledger, limiter: Not used: nothing is sent.
        max_tokens: As it was recorded, for it is a part of requests.
        base_url: Not used; there is no endpoint.
        cassette: Path of the file; see `operators.models.recording`.

    Raises:
        InputError: The file is missing or is no cassette.
        ValueError: A malformed argument.
    """

    provider: ClassVar[str] = "recorded"

    def __init__(
        self,
        name: str,
        *,
        ledger: Account,
        limiter: Limiter | None = None,
        max_tokens: int = 16_000,
        base_url: str | None = None,
        cassette: str,
    ) -> None:
        super().__init__(name, max_tokens=max_tokens)
        if base_url is not None:
            raise ValueError("base_url: this provider has no endpoint; give options.cassette")
        self._answers: defaultdict[str, deque[_Answer]] = defaultdict(deque)
        path = Path(cassette).expanduser()
        where = f"model {name}: options.cassette {cassette}"
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(where, action=f"cannot be read: {error}") from None
        for number, line in enumerate(lines, start=1):
            try:
                key, answer = _read(line)
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise InputError(f"{where}:{number}", action=f"no line of a cassette ({type(error).__name__})") from None
            if answer.exchange.model == name:
                self._answers[key].append(answer)

    @property
    def supports_grammar(self) -> bool:
        """Whatever was recorded with one; a request without it is another request."""
        return True

    async def complete(self, prompt: Prompt) -> Exchange:
        """See `Model.complete`."""
        waiting = self._answers[request_key(prompt)]
        if not waiting:
            nothing = Exchange(
                self.name, prompt.prompt_hash, prompt.template_hash, prompt.text, "", "error", "recorded", 0.0, Usage()
            )
            raise RequestError(f"{self.name}: the cassette holds no further answer to this request", nothing)
        answer = waiting.popleft()
        exchange = Exchange.from_json({**answer.exchange.to_json(), "prompt": prompt.text})
        if answer.error is not None:
            raise RequestError(answer.error, exchange)
        return exchange


def _read(line: str) -> tuple[str, _Answer]:
    document = json.loads(line)
    error = document["error"]
    if not isinstance(document["key"], str) or not (error is None or isinstance(error, str)):
        raise TypeError("key and error are text")
    return document["key"], _Answer(Exchange.from_json({**document["exchange"], "prompt": ""}), error)
