"""What tests of the anthropic client ask of the loopback server, and how."""

from __future__ import annotations

import asyncio
from typing import Any

from evo.records import Exchange
from operators.models.anthropic import AnthropicModel
from operators.models.base import Prompt
from operators.models.ledger import Ledger
from tests.operators_tests.loopback import Loopback

MODEL = "claude-opus-5-5"
PROMPT = Prompt(("Rules. " * 400, "Task. " * 200), "Improve this kernel.", "hash", 1_000)
GOOD = "Strategy: tiles.\n```python\nx = 1\n```"


def model(server: Loopback, **options: Any) -> AnthropicModel:
    settings = {"ledger": Ledger(5.0), "timeout_s": 10.0, "silence_s": 5.0, "max_retries": 1, **options}
    return AnthropicModel(MODEL, base_url=server.url, **settings)


def complete(client: AnthropicModel, prompt: Prompt = PROMPT) -> Exchange:
    async def once() -> Exchange:
        try:
            return await client.complete(prompt)
        finally:
            await client.close()

    return asyncio.run(once())
