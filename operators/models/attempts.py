"""What happens around each HTTP attempt of the anthropic SDK: money, errors that end the run, and errors in words."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx2

from evo.errors import SpendLimitError
from operators.models.ledger import Ledger, Reservation

_SPEND_CODES = frozenset(
    {
        "contract_spend_limit_reached",
        "enforced_spend_limit_reached",
        "linked_organization_spend_limit_reached",
        "linked_organization_billing_unavailable",
        "organization_on_hold",
    }
)
"""Error codes that no waiting mends. Some come as 429, which the SDK would otherwise retry."""

_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
"""Transport errors before the request left this machine: nothing can have been billed."""


class Attempts(anthropic.Middleware):
    """Runs around every HTTP attempt of one call: reserves its dollars before it is sent, ends retries that waiting cannot mend.

    Attributes:
        sent: Attempts that were sent.
    """

    def __init__(self, ledger: Ledger, bound: float, model: str) -> None:
        self._ledger = ledger
        self._bound = bound
        self._model = model
        self._open: Reservation | None = None
        self._booked = 0.0
        self.sent = 0

    async def handle_async(self, request: anthropic.APIRequest, call_next: anthropic.AsyncCallNext) -> Any:
        """One attempt."""
        self.finish(None)  # an attempt before this one that left without an answer may have been billed
        self._open = await self._ledger.reserve(self._bound)
        self.sent += 1
        try:
            response = await call_next(request)
        except anthropic.APIConnectionError as error:
            if isinstance(error.__cause__, _NEVER_SENT):
                self.finish(0.0)
            raise
        if response.status_code >= 400:
            self.finish(0.0)  # an error status is never billed
            answer = response.http_response
            await answer.aread()
            code = spend_code(response.status_code, _json(answer))
            if code:
                raise out_of_money(self._model, code, answer.headers.get("request-id"))
        return response

    def finish(self, dollars: float | None) -> float:
        """Settles the attempt in flight, if any, in full where its bill is unknown (None).

        Returns:
            Dollars that the call has cost so far.
        """
        if self._open is not None:
            paid = self._open.dollars if dollars is None else dollars
            self._open.settle(paid)
            self._open = None
            self._booked += paid
        return self._booked


def _json(response: httpx2.Response) -> object:
    try:
        return response.json()
    except ValueError:
        return None


def spend_code(status: int, body: object) -> str:
    """Why the endpoint will not bill this account, empty for every other error."""
    error = body.get("error") if isinstance(body, dict) else None
    error = error if isinstance(error, dict) else {}
    details = error.get("details")
    code = details.get("error_code") if isinstance(details, dict) else None
    if code in _SPEND_CODES:
        return str(code)
    return "billing_error" if status == 402 or error.get("type") == "billing_error" else ""


def out_of_money(model: str, code: str, request_id: str | None) -> SpendLimitError:
    """What ends the search where the endpoint refuses to bill."""
    return SpendLimitError(f"{model}: the endpoint no longer bills this account ({code}; request {request_id or 'without id'})")


def described(error: Exception) -> str:
    """One line about an SDK error, without the request it holds."""
    if isinstance(error, anthropic.APIStatusError):
        words = [str(error.status_code), error.type, error.error_code]
        said = " ".join(str(error.api_message or "").split())[:300]
        return " ".join(word for word in words if word) + (f": {said}" if said else "")
    if isinstance(error, anthropic.APITimeoutError | httpx2.TimeoutException):
        return "the endpoint was silent for too long"
    if isinstance(error, anthropic.APIConnectionError | httpx2.TransportError):
        return f"the connection failed ({type(error.__cause__ or error).__name__})"
    return f"the answer is no message stream ({type(error).__name__})"
