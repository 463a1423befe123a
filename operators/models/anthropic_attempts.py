"""The anthropic SDK's hook around every HTTP attempt, and its errors in words."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx2

from operators.models.attempts import NEVER_SENT, Attempts, out_of_money, redirect_hint, spend_code


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
                self._attempts.finish((0.0, 0))
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
        words = [str(error.status_code), error.type, error.error_code]
        said = " ".join(str(error.api_message or "").split())[:300]
        return " ".join(word for word in words if word) + (f": {said}" if said else "") + redirect_hint(error.status_code)
    if isinstance(error, anthropic.APITimeoutError | httpx2.TimeoutException):
        return "the endpoint was silent for too long"
    if isinstance(error, anthropic.APIConnectionError | httpx2.TransportError):
        return f"the connection failed ({type(error.__cause__ or error).__name__})"
    return f"the answer is no message stream ({type(error).__name__})"


def _json(response: httpx2.Response) -> object:
    try:
        return response.json()
    except ValueError:
        return None
