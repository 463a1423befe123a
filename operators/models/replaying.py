"""A model that answers from a script: for tests, examples, and searches that must repeat exactly without any endpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from evo.errors import ModelError
from evo.records import Exchange, Usage
from operators.models.base import Model, Prompt


@dataclass(frozen=True)
class Reply:
    """One scripted answer."""

    text: str
    stop_reason: str = "end_turn"
    usage: Usage = field(default_factory=Usage)


Answer = Reply | str | ModelError
"""A reply, its text alone, or an error to raise."""


class ReplayModel(Model):
    """Answers without an endpoint, in the order of a script or by a function of the prompt.

    Args:
        script: Answers given out one by one, the request after the last one failing with ModelError; or a function, which for a
            reproducible search depends on nothing but the prompt.
        name: Model name that exchanges carry.
        max_tokens: As every model has it.
    """

    provider: ClassVar[str] = "replaying"

    def __init__(
        self, script: Sequence[Answer] | Callable[[Prompt], Answer], *, name: str = "replay", max_tokens: int = 16_000
    ) -> None:
        super().__init__(name, max_tokens=max_tokens)
        self._script = script if callable(script) else tuple(script)
        self._prompts: list[Prompt] = []
        self._lock = threading.Lock()

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """Everything it was asked so far, in order."""
        with self._lock:
            return tuple(self._prompts)

    async def complete(self, prompt: Prompt) -> Exchange:
        """The next answer of the script as an exchange.

        Raises:
            ModelError: The script says so, or has come to its end.
        """
        with self._lock:
            self._prompts.append(prompt)
            number = len(self._prompts)
        answer = self._answer(number, prompt)
        if isinstance(answer, ModelError):
            raise answer
        reply = Reply(answer) if isinstance(answer, str) else answer
        return Exchange(
            model=self.name,
            prompt_hash=prompt.prompt_hash,
            template_hash=prompt.template_hash,
            prompt=prompt.text,
            reply=reply.text,
            stop_reason=reply.stop_reason,
            request_id=f"replay-{prompt.prompt_hash}",
            latency_s=0.0,
            usage=reply.usage,
        )

    def _answer(self, number: int, prompt: Prompt) -> Answer:
        if callable(self._script):
            return self._script(prompt)
        if number > len(self._script):
            raise ModelError(f"the script of {self!r} has {len(self._script)} answers and was asked for one more")
        return self._script[number - 1]
