"""A model file on this machine, in a process of its own that this one starts and that ends with it: no server, no key, no bill."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any, ClassVar

from evo.records import Exchange, Usage
from operators.models.attempts import Attempts, Bound, cleaned
from operators.models.base import Model, Prompt, RequestError
from operators.models.child import Child
from operators.models.ledger import Account
from operators.models.limits import Limiter, LocalLimiter

_PATIENCE_S = 30.0
"""After its deadline a process that has not answered is ended."""

_START_S = 600.0
"""Longest time in which a model is loaded."""


class LocalModel(Model):
    """A GGUF file, read by llama.cpp; replies are held to grammars by llguidance. ``pip install 'triton-evolve[local]'``.

    It is loaded by the first request, and again after its process died. Requests are answered one after another.

    Args:
        name: What exchanges call it.
        ledger: Counts tokens; there is nothing to pay.
        limiter: None for one of its own.
        max_tokens: Longest reply that operators ask it for.
        base_url: Not used; there is no endpoint.
        file: Path of the GGUF file.
        context: Tokens of prompt and reply together; 0 for as many as the model was trained on, at most 16384.
        temperature: Of sampling; 0 takes the likeliest token.
        top_p: Share of the probability that tokens are drawn from.
        threads: Of the CPU; 0 for one per two cores that this process may use.
        gpu_layers: Layers that are kept on a GPU, where llama.cpp was built for one.
        gpus: Numbers of the GPUs that it may see, like ``CUDA_VISIBLE_DEVICES``; without it none in a run.
        timeout_s: Longest time of one reply; what is not written by then is cut off.

    Raises:
        ValueError: A malformed argument.
    """

    provider: ClassVar[str] = "local"

    def __init__(
        self,
        name: str,
        *,
        ledger: Account,
        limiter: Limiter | None = None,
        max_tokens: int = 16_000,
        base_url: str | None = None,
        file: str,
        context: int = 0,
        temperature: float = 0.7,
        top_p: float = 0.95,
        threads: int = 0,
        gpu_layers: int = 0,
        gpus: str | int | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        super().__init__(name, max_tokens=max_tokens)
        if base_url is not None:
            raise ValueError("base_url: this provider has no endpoint; give options.file")
        if not 0 <= temperature <= 2 or not 0 < top_p <= 1:
            raise ValueError(f"temperature {temperature} must be 0 … 2 and top_p {top_p} above 0 and at most 1")
        if min(context, threads, gpu_layers) < 0 or not timeout_s > 0:
            raise ValueError("context, threads and gpu_layers must be 0 or more, and timeout_s above 0")
        self._ledger = ledger
        self._limiter = limiter or LocalLimiter()
        self._loading = {
            "path": str(Path(file).expanduser().absolute()),
            "context": context,
            "threads": threads or _threads(),
            "gpu_layers": gpu_layers,
        }
        self._sampling = {"temperature": temperature, "top_p": top_p}
        self._gpus = gpus
        self._timeout_s = timeout_s
        self._child: _Child | None = None
        self._answering = threading.Lock()
        self._asked: dict[str, int] = {}
        self._turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()

    @property
    def supports_grammar(self) -> bool:
        """See `Model.supports_grammar`."""
        return True

    async def complete(self, prompt: Prompt) -> Exchange:
        """See `Model.complete`."""
        bound = Bound.of(prompt, None)
        attempts = Attempts(self._ledger, self._limiter, bound)
        answer: dict[str, Any] = {"error": "it was given up"}
        usage = Usage()
        async with self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            await attempts.begin()
            started = time.perf_counter()
            try:
                answer = await asyncio.to_thread(self._answer, self._request(prompt))
                if "error" not in answer:
                    usage = bound.believed(Usage(answer["read"], answer["written"], answer["cached"]))
            except asyncio.CancelledError:
                if self._child is not None:  # a thread waits for it, and whoever ends this process for the thread
                    self._child.kill()
                raise
            finally:
                attempts.finish((0.0, usage.tokens))
        failure = answer.get("error", "")
        exchange = Exchange(
            model=self.name,
            prompt_hash=prompt.prompt_hash,
            template_hash=prompt.template_hash,
            prompt=prompt.text,
            reply="" if failure else cleaned(answer["reply"], ()),
            stop_reason="error" if failure else answer["stop"],
            request_id=f"{prompt.prompt_hash}-{self._asked[prompt.prompt_hash]}",
            latency_s=time.perf_counter() - started,
            usage=usage,
        )
        if failure:
            raise RequestError(f"{self.name}: {failure}", exchange)
        return exchange

    async def close(self) -> None:
        """Ends the process; the next request starts another."""
        child, self._child = self._child, None
        if child is not None:
            await asyncio.to_thread(child.end)

    def _request(self, prompt: Prompt) -> dict[str, Any]:
        """What the process is asked. Equal requests are sampled anew each time, and the same way in every run."""
        number = self._asked[prompt.prompt_hash] = self._asked.get(prompt.prompt_hash, 0) + 1
        system = [{"role": "system", "content": "\n\n".join(prompt.stable)}] if prompt.stable else []
        return {
            "messages": [*system, {"role": "user", "content": prompt.body}],
            "max_tokens": prompt.max_tokens,
            "seed": int(prompt.prompt_hash, 16) % 2**62 + number,
            "grammar": prompt.grammar.lark if prompt.grammar else "",
            "seconds": self._timeout_s,
            **self._sampling,
        }

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._answering:
            child = self._child
            if child is None:
                child = self._child = _Child(self._command(), answers=True, gpus=self._gpus)
                loaded = child.ask(self._loading, _START_S)
                if "error" in loaded:
                    child.end()
                    self._child = None
                    return loaded
            answer = child.ask(request, self._timeout_s + _PATIENCE_S)
            if child.dead:
                self._child = None
            return answer

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "operators.models.local_child"]


def _threads() -> int:
    """Evaluators want cores as well, and threads of llama.cpp wait for each other without a pause: with more of them than free cores
    it writes several times slower."""
    return max(1, len(os.sched_getaffinity(0)) // 2)


class _Child(Child):
    """A process that answers lines of JSON with lines of JSON."""

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """One request; an answer with ``error`` where there is none."""
        assert self._process.stdin is not None, "opened as a pipe"
        assert self._process.stdout is not None, "opened as a pipe"
        timer = threading.Timer(seconds, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline())
        except (OSError, ValueError):
            return {"error": f"its process ended {self.how_it_ended(seconds)}"}
        finally:
            timer.cancel()
        return answer if isinstance(answer, dict) else {"error": "its process said what is no answer"}
