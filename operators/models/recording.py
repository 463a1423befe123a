"""Writes down what a model answers, so that `operators.models.recorded` can say the same again without an endpoint.

A cassette is a text file with one JSON object a line, in the order of the answers::

    {"key": HASH OF THE REQUEST, "exchange": {…, without the prompt}, "error": null or TEXT}

It holds no key: exchanges and messages of failed requests hold none.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import ClassVar

from evo.errors import InputError
from evo.records import Exchange, content_id
from operators.models.base import Model, Prompt, RequestError


def request_key(prompt: Prompt) -> str:
    """What makes two requests equal, whichever model they are for."""
    return content_id(prompt.prompt_hash, str(prompt.max_tokens))


class RecordingModel(Model):
    """Another model, whose answers and failed requests are appended to a cassette before anybody acts on them.

    Args:
        model: Who answers.
        cassette: Path of the file; made where there is none, and never shortened.

    Raises:
        InputError: It cannot be written.
    """

    provider: ClassVar[str] = "recording"

    def __init__(self, model: Model, cassette: str) -> None:
        super().__init__(model.name, max_tokens=model.max_tokens)
        self._model = model
        self._path = Path(cassette).expanduser().absolute()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._append(b"")
        except OSError as error:
            where = f"model {model.name}: options.record"
            raise InputError(where, given=cassette, action=f"cannot be written: {error.strerror}") from None

    @property
    def supports_grammar(self) -> bool:
        """As the model itself."""
        return self._model.supports_grammar

    @property
    def least_dollars(self) -> float:
        """As the model itself."""
        return self._model.least_dollars

    async def complete(self, prompt: Prompt) -> Exchange:
        """See `Model.complete`. A request that was never sent, for want of money, is not recorded."""
        try:
            exchange = await self._model.complete(prompt)
        except RequestError as error:
            await asyncio.to_thread(self._append, _line(prompt, error.exchange, error.message))
            raise
        await asyncio.to_thread(self._append, _line(prompt, exchange, None))
        return exchange

    async def close(self) -> None:
        """As the model itself."""
        await self._model.close()

    def _append(self, line: bytes) -> None:
        # One write at the end of the file: several proposers may write to one cassette.
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            while line:
                line = line[os.write(file, line) :]
        finally:
            os.close(file)


def _line(prompt: Prompt, exchange: Exchange, error: str | None) -> bytes:
    record = exchange.to_json()
    del record["prompt"]
    return json.dumps({"key": request_key(prompt), "exchange": record, "error": error}).encode() + b"\n"
