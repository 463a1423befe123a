"""One way to ask every provider the same things: a scripted endpoint for each, chosen by the provider's name.

A new provider over HTTP needs nothing here: it is given the loopback server's address and a key in ``PROVIDER_API_KEY``. Another
kind of endpoint is another entry of `ENDPOINTS`.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from operators.models.base import Model
from operators.models.building import build_model
from operators.models.ledger import Account, Ledger
from operators.models.limits import Limiter
from tests.operators_tests.loopback import Answer, Loopback, Message

CANARY = "sk-canary-0123456789abcdef"
NAMES = {"anthropic": "claude-opus-5-5", "openai": "gpt-6.1-sol"}


@dataclass
class Endpoint:
    """A scripted endpoint of one provider.

    Attributes:
        provider: Its name.
        model: Makes a client, given a ledger and further options.
        count: Requests that arrived.
        texts: Everything that arrived, as text.
        over_http: It has status codes, keys and streams.
    """

    provider: str
    model: Callable[..., Model]
    count: Callable[[], int]
    texts: Callable[[], str]
    over_http: bool = True
    server: Loopback | None = field(default=None)


@contextlib.contextmanager
def http_endpoint(provider: str, script: Sequence[Answer], folder: Path) -> Iterator[Endpoint]:
    """The loopback server."""
    with Loopback(script) as server:

        def model(ledger: Account | None = None, limiter: Limiter | None = None, **options: Any) -> Model:
            from operators.models.building import client_of

            settings: dict[str, Any] = {"timeout_s": 10.0, "silence_s": 5.0, "max_retries": 1}
            if "key_env" in inspect.signature(client_of(provider)).parameters:
                settings["key_env"] = f"{provider.upper()}_API_KEY"
            return build_model(
                provider,
                NAMES.get(provider, "scripted"),
                ledger=ledger or Ledger(5.0),
                limiter=limiter,
                base_url=server.url,
                options={**settings, **options},
            )

        yield Endpoint(provider, model, lambda: server.count, lambda: json.dumps(server.bodies), server=server)


@contextlib.contextmanager
def batch_endpoint(provider: str, script: Sequence[Answer], folder: Path) -> Iterator[Endpoint]:
    """The same provider through batches."""
    with http_endpoint(provider, script, folder) as endpoint:
        batched = {"batch": True, "batch_window_s": 0.05, "batch_poll_s": 0.02}

        def model(ledger: Account | None = None, limiter: Limiter | None = None, **options: Any) -> Model:
            return endpoint.model(ledger, limiter, **{**batched, **options})

        yield Endpoint(provider, model, endpoint.count, endpoint.texts, server=endpoint.server)


@contextlib.contextmanager
def files_endpoint(provider: str, script: Sequence[Answer], folder: Path) -> Iterator[Endpoint]:
    """Somebody who answers the files of requests from the script; errors stay unanswered."""
    requests: list[str] = []
    stopping = threading.Event()

    def answer() -> None:
        seen: set[str] = set()
        while not stopping.wait(0.01):
            for path in sorted((folder / "requests").glob("*.json")):
                if path.stem in seen:
                    continue
                with contextlib.suppress(FileNotFoundError):  # it was withdrawn meanwhile
                    requests.append(path.read_text())
                    seen.add(path.stem)
                    _answer_file(folder, path.stem, script[min(len(requests), len(script)) - 1])

    def model(ledger: Account | None = None, limiter: Limiter | None = None, **options: Any) -> Model:
        timeout_s = options.pop("timeout_s", 3.0)
        options.pop("silence_s", None)
        settings = {"folder": str(folder), "timeout_s": timeout_s, "poll_s": 0.01, "max_retries": 1, **options}
        return build_model(provider, "person", ledger=ledger or Ledger(5.0), limiter=limiter, options=settings)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield Endpoint(provider, model, lambda: len(requests), lambda: "\n".join(requests), over_http=False)
    finally:
        stopping.set()
        thread.join()


def _answer_file(folder: Path, name: str, answer: Answer) -> None:
    if not isinstance(answer, Message) or answer.delay_s:
        return
    text = "".join(block for block in answer.blocks if isinstance(block, str))
    draft = folder / "replies" / f".{name}"
    usage = {"input_tokens": 10, "output_tokens": answer.claims or 5}
    draft.write_text(json.dumps({"reply": text, "stop_reason": answer.stop_reason, "usage": usage}))
    draft.replace(folder / "replies" / f"{name}.json")


ENDPOINTS: Mapping[str, Callable[[str, Sequence[Answer], Path], contextlib.AbstractContextManager[Endpoint]]] = {
    "files": files_endpoint
}


def quiet_environment(monkeypatch: pytest.MonkeyPatch, folder: Path, providers: Sequence[str]) -> None:
    """A key, none of this machine's own settings, and no certificate authorities: reading them takes 0.1 s per client."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", str(folder))
    for name in (
        "ANTHROPIC_AUTH_TOKEN",
        "ANTHROPIC_BASE_URL",
        "ANTHROPIC_PROFILE",
        "ANTHROPIC_CUSTOM_HEADERS",
        "OPENAI_BASE_URL",
    ):
        monkeypatch.delenv(name, raising=False)
    for provider in providers:
        monkeypatch.setenv(f"{provider.upper()}_API_KEY", CANARY)
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(folder))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
