"""The anthropic SDK's hook around every HTTP attempt, and its errors in words."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx2

from operators.models.attempts import NEVER_SENT, Attempts, out_of_money, spend_code
from operators.models.over_http import transport_trouble, with_hint


class AttemptHook(anthropic.Middleware):
    """Runs inside of the SDK's retries: begins every attempt, and ends retries that waiting cannot mend.

    Args:
        attempts: Of one call.
        model: Name for messages.
    """

    def __init__(self, attempts: Attempts, model: str) -> None:
        self._attempts = attempts
        self._model = model

    async def handle_async(self, request: anthropic.APIRequest, call_next: anthropic.AsyncCallNext) -> Any:
        """One attempt."""
        await self._attempts.begin()
        try:
            response = await call_next(request)
        except anthropic.APIConnectionError as error:
            if isinstance(error.__cause__, NEVER_SENT):
                self._attempts.unreached()
            raise
        if response.status_code >= 300:
            answer = response.http_response
            self._attempts.refused(response.status_code, answer.headers)
            await answer.aread()
            code = spend_code(response.status_code, _json(answer))
            if code:
                raise out_of_money(self._model, code, answer.headers.get("request-id"))
        return response


def described(error: Exception) -> str:
    """One line about an SDK error, without the request it holds."""
    if isinstance(error, anthropic.APIStatusError):
        return with_hint(error, (error.type, error.error_code), error.api_message)
    return transport_trouble(error, (anthropic.APITimeoutError,), anthropic.APIConnectionError)


def _json(response: httpx2.Response) -> object:
    try:
        return response.json()
    except ValueError:
        return None
