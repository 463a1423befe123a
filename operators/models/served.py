"""A server of the OpenAI API that the run starts itself, by a command of yours, and that ends with the run, however that ends."""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import sys
import time
import weakref
from typing import Any, ClassVar

import httpx2

from evo.records import Exchange, Usage
from operators.models.base import Prompt, RequestError
from operators.models.child import Child
from operators.models.ledger import Account
from operators.models.limits import Limiter
from operators.models.openai import OpenAiModel, Server
from operators.models.server_child import GRACE_S

PORT = "{port}"
"""Stands in a command for the port that the server shall listen on."""

_STARTS = 3
"""In a row without an answer between them; after that it is believed to fail again."""

_LOOKS_S = (0.02, 1.0)
"""Between two looks whether it is ready: at first, and at most."""

_DYING_S = 1.0
"""A connection may break before the process has ended."""


class ServedModel(OpenAiModel):
    """A server on this machine: the first request starts it and waits until it is ready, as does the next one after it has died.

    Each proposer of a run starts one of its own.

    Args:
        name: As the server knows the model.
        ledger: Counts tokens; there is nothing to pay.
        limiter: None for one of its own, which only heeds pauses.
        max_tokens: Longest reply that operators ask it for.
        base_url: Not used; the server listens where it is told to.
        command: The server's program with its arguments, split like a shell does, but run without one. ``{port}`` in it becomes a free
            port of 127.0.0.1, and ``~/`` at the beginning of an argument the home folder.
        server: Which one it is, where replies shall be held to a grammar.
        gpus: Numbers of the GPUs that it may see, like ``CUDA_VISIBLE_DEVICES``; without it none in a run.
        start_s: Longest time until it is ready, which is when ``/health`` (or, without such a page, ``/v1/models``) answers with 200.
        temperature, timeout_s, silence_s, max_retries: See `OpenAiModel`.

    Raises:
        ValueError: A malformed argument.
    """

    provider: ClassVar[str] = "served"

    def __init__(
        self,
        name: str,
        *,
        ledger: Account,
        limiter: Limiter | None = None,
        max_tokens: int = 16_000,
        base_url: str | None = None,
        command: str,
        server: Server | None = None,
        gpus: str | int | None = None,
        start_s: float = 600.0,
        temperature: float = 1.0,
        timeout_s: float = 600.0,
        silence_s: float = 600.0,
        max_retries: int = 1,
    ) -> None:
        if base_url is not None:
            raise ValueError("base_url: the run starts this server and tells it where to listen; give options.command")
        self._command = _split(command)
        if not start_s > 0:
            raise ValueError(f"start_s {start_s} must be above 0")
        self._gpus = gpus
        self._start_s = start_s
        self._child: Child | None = None
        self._starts = 0
        self._problem = ""
        self._turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()
        super().__init__(
            name,
            ledger=ledger,
            limiter=limiter,
            max_tokens=max_tokens,
            base_url=_address(0),
            temperature=temperature,
            server=server,
            free=True,
            timeout_s=timeout_s,
            silence_s=silence_s,
            max_retries=max_retries,
        )

    async def complete(self, prompt: Prompt) -> Exchange:
        """See `Model.complete`."""
        async with self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            problem = await self._readied()
        if problem:
            unanswered = Exchange(self.name, prompt.prompt_hash, prompt.template_hash, prompt.text, "", "error", "", 0.0, Usage())
            raise RequestError(f"{self.name}: {problem}", unanswered)
        child = self._child
        try:
            exchange = await super().complete(prompt)
        except RequestError as error:
            how = await _death(child)
            if not how:
                raise
            raise RequestError(f"{error.message}; its server ended {how}", error.exchange) from None
        self._starts = 0
        return exchange

    async def close(self) -> None:
        """Ends the server as well; the next request starts another."""
        await super().close()
        child, self._child = self._child, None
        if child is not None:
            await asyncio.to_thread(child.end)

    @property
    def _http(self) -> dict[str, Any]:
        return super()._http | {"trust_env": False}  # what is on this machine is asked without a proxy

    async def _readied(self) -> str:
        """Starts the server where it does not run; why it cannot be asked, else nothing."""
        if self._child is not None and not self._child.dead:
            return ""
        if self._starts >= _STARTS:
            return f"{self._problem}; it is not started again after {_STARTS} times without an answer"
        await self.close()  # the connections to the one that died
        self._starts += 1
        port = _free_port()
        keeper = [sys.executable, "-m", "operators.models.server_child"]
        child = Child([*keeper, *(part.replace(PORT, str(port)) for part in self._command)], grace_s=2 * GRACE_S, gpus=self._gpus)
        self._base_url = _address(port)
        try:
            self._problem = await self._waited(child, port)
        except BaseException:
            child.end()
            raise
        if self._problem:
            await asyncio.to_thread(child.end)
            return self._problem
        self._child = child
        return ""

    async def _waited(self, child: Child, port: int) -> str:
        """Waits until it is ready; why it is not, else nothing."""
        deadline = time.monotonic() + self._start_s
        pause = _LOOKS_S[0]
        async with httpx2.AsyncClient(trust_env=False, timeout=5.0) as client:
            while not child.dead:
                if await _is_ready(client, port) and not child.dead:
                    return ""
                if time.monotonic() > deadline:
                    await asyncio.to_thread(child.end)
                    how = await asyncio.to_thread(child.how_it_ended)
                    return f"its server was not ready within {self._start_s:g} s (options.start_s) and was ended {how}"
                await asyncio.sleep(pause)
                pause = min(_LOOKS_S[1], pause * 1.5)
        return f"its server ended {await asyncio.to_thread(child.how_it_ended)}"


async def _is_ready(client: httpx2.AsyncClient, port: int) -> bool:
    try:
        async with client.stream("GET", f"http://127.0.0.1:{port}/health") as answer:
            status = answer.status_code
        if status in (404, 405):
            async with client.stream("GET", f"{_address(port)}/models") as answer:
                status = answer.status_code
    except httpx2.HTTPError:
        return False
    return status == 200


async def _death(child: Child | None) -> str:
    """How it ended, if it did."""
    deadline = time.monotonic() + _DYING_S
    while child is not None and not child.dead and time.monotonic() < deadline:
        await asyncio.sleep(_LOOKS_S[0])
    return await asyncio.to_thread(child.how_it_ended) if child is not None and child.dead else ""


def _split(command: str) -> list[str]:
    try:
        parts = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"command: {error}") from None
    if not parts or not any(PORT in part for part in parts):
        raise ValueError(f"command {command!r}: {PORT} must stand in it, where the server is told its port")
    return [os.path.expanduser(part) for part in parts]


def _address(port: int) -> str:
    return f"http://127.0.0.1:{port}/v1"


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
