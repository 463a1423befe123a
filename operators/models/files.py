"""A model without a network: each request is a file in one folder, its reply is taken from another, whoever puts it there.

`FOLDER/requests/ID.json` holds a request::

    {"format": 1, "id": ID, "model": NAME, "system": [TEXT, …], "prompt": TEXT, "max_tokens": N, "grammar": TEXT, "reply_to": PATH}

and is answered by `FOLDER/replies/ID.json`, best written under another name and renamed::

    {"reply": TEXT, "stop_reason": "end_turn", "usage": {"input_tokens": N, "output_tokens": N}}

of which only ``reply`` must be there, or by `FOLDER/replies/ID.md`, a file that is the reply. Files of replies stay: a search that was
ended and goes on takes the reply to an equal request from there. No file holds a key.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from evo.errors import InputError
from evo.records import Exchange, Usage, content_id
from operators.models.attempts import MAX_REPLY_CHARS, Attempts, Bound, checked_limits, cleaned, token_count
from operators.models.base import Model, Prompt, RequestError
from operators.models.ledger import Account
from operators.models.limits import Limiter, LocalLimiter

FORMAT = 1

_MAX_BYTES = 4 * MAX_REPLY_CHARS
_STOP_REASONS = frozenset({"end_turn", "stop_sequence", "max_tokens", "refusal"})
_KEYS = frozenset({"id", "reply", "stop_reason", "usage"})
_USAGE_KEYS = frozenset({"input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"})

_SETTLED_S = 3.0
"""A file that is no whole reply may still be written; it counts as one, or as none, after so long without a change."""


class _NotYetError(Exception):
    """There is no whole reply so far."""


class _WrongError(Exception):
    """There is a reply that cannot be used."""


@dataclass(frozen=True)
class _Reply:
    id: str
    text: str
    stop_reason: str
    usage: Usage


class FilesModel(Model):
    """Whoever answers the files. It costs nothing that we know of; tokens count as the reply says.

    Args:
        name: Of the model that shall answer; part of the request.
        ledger: Counts tokens.
        limiter: Of the endpoint; None for one of its own.
        max_tokens: Longest reply that operators ask for.
        base_url: Not used; there is no endpoint.
        folder: Where the folders `requests` and `replies` are; they are made.
        timeout_s: How long a request may stay unanswered before it is withdrawn.
        max_retries: How often a request is then made again, under a new id.
        poll_s: Time between two looks for a reply.

    Raises:
        InputError: The folder cannot be made or used.
        ValueError: A malformed argument.
    """

    provider: ClassVar[str] = "files"

    def __init__(
        self,
        name: str,
        *,
        ledger: Account,
        limiter: Limiter | None = None,
        max_tokens: int = 16_000,
        base_url: str | None = None,
        folder: str,
        timeout_s: float = 86_400.0,
        max_retries: int = 1,
        poll_s: float = 1.0,
    ) -> None:
        super().__init__(name, max_tokens=max_tokens)
        checked_limits(timeout_s, poll_s, max_retries)
        if base_url is not None:
            raise ValueError("base_url: this provider has no endpoint; give options.folder")
        self._ledger = ledger
        self._limiter = limiter or LocalLimiter()
        self._requests = Path(folder).expanduser().absolute() / "requests"
        self._replies = self._requests.with_name("replies")
        self._timeout_s = timeout_s
        self._max_retries = max_retries
        self._poll_s = poll_s
        self._open: Counter[str] = Counter()
        self._folder = threading.Lock()
        try:
            for path in (self._requests, self._replies):
                path.mkdir(parents=True, exist_ok=True)
                os.close(_open_folder(path))
        except OSError as error:
            raise InputError(f"model {name}: options.folder", given=folder, action=f"cannot be used: {error.strerror}") from None

    async def complete(self, prompt: Prompt) -> Exchange:
        """See `Model.complete`."""
        bound = Bound.of(prompt, None)
        attempts = Attempts(self._ledger, self._limiter, bound)
        started = time.perf_counter()
        key = content_id(
            self.name, str(prompt.max_tokens), *prompt.stable, prompt.body, prompt.grammar.lark if prompt.grammar else ""
        )
        ids = [f"{key}-{number}" for number in range(self._max_retries + 1)]
        reply: _Reply | None = None
        failure = ""
        try:
            reply = await asyncio.to_thread(self._look_for, ids)
            for request_id in () if reply else ids:
                await attempts.begin()
                reply, failure = await self._ask(request_id, prompt, ids)
                if reply is not None:
                    break
                attempts.finish((0.0, 0))  # nobody bills an unanswered file
        except OSError as error:
            failure = f"the folder {self._requests.parent} cannot be used: {error.strerror}"
        finally:
            usage = bound.believed(reply.usage) if reply else Usage()
            attempts.finish((0.0, usage.tokens))
        exchange = Exchange(
            model=self.name,
            prompt_hash=prompt.prompt_hash,
            template_hash=prompt.template_hash,
            prompt=prompt.text,
            reply=cleaned(reply.text, ()) if reply else "",
            stop_reason=reply.stop_reason if reply else "error",
            request_id=reply.id if reply else ids[max(0, attempts.sent - 1)],
            latency_s=time.perf_counter() - started,
            usage=usage,
        )
        if reply is None:
            raise RequestError(f"{self.name}: {failure} (requests made: {attempts.sent})", exchange)
        return exchange

    async def _ask(self, request_id: str, prompt: Prompt, ids: list[str]) -> tuple[_Reply | None, str]:
        """One request: its reply, or a late one to an earlier id; or why there is none."""
        path = self._requests / f"{request_id}.json"
        self._open[request_id] += 1
        try:
            await asyncio.to_thread(self._publish, request_id, prompt)
            deadline = time.monotonic() + self._timeout_s
            while time.monotonic() < deadline:
                reply = await asyncio.to_thread(self._look_for, ids, request_id)
                if reply is not None:
                    return reply, ""
                await asyncio.sleep(min(self._poll_s, max(0.0, deadline - time.monotonic())))
            return None, f"no reply within {self._timeout_s:g} s"
        except _WrongError as error:
            return None, str(error)
        finally:
            with self._folder:
                self._open[request_id] -= 1
                if not self._open[request_id]:  # equal prompts wait for the same reply
                    path.unlink(missing_ok=True)  # the folder holds open questions only

    def _publish(self, request_id: str, prompt: Prompt) -> None:
        """Write the request, unless it was withdrawn meanwhile: a thread outlives the task that waits for it."""
        with _draft(self._requests, self._document(request_id, prompt)) as draft, self._folder:
            if self._open[request_id]:
                draft.replace(self._requests / f"{request_id}.json")

    def _document(self, request_id: str, prompt: Prompt) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "id": request_id,
            "model": self.name,
            "system": list(prompt.stable),
            "prompt": prompt.body,
            "max_tokens": prompt.max_tokens,
            "grammar": prompt.grammar.lark if prompt.grammar else "",
            "reply_to": str(self._replies / f"{request_id}.json"),
        }

    def _look_for(self, ids: list[str], current: str = "") -> _Reply | None:
        """The reply to one of these ids, the newest id first.

        Raises:
            _WrongError: The one to the current id cannot be used.
        """
        folder = _open_folder(self._replies)
        try:
            for request_id in reversed(ids):
                for suffix in (".json", ".md"):
                    try:
                        return _read(folder, request_id, suffix)
                    except _NotYetError:
                        continue
                    except ValueError as error:
                        if request_id == current:
                            raise _WrongError(f"the reply {request_id}{suffix} cannot be used: {error}") from None
        finally:
            os.close(folder)
        return None


def _open_folder(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


@contextmanager
def _draft(folder: Path, document: dict[str, Any]) -> Iterator[Path]:
    """A whole file to rename, of its own for every writer: equal prompts are written at once."""
    number, name = tempfile.mkstemp(prefix=".draft.", dir=folder)
    try:
        with os.fdopen(number, "w", encoding="ascii") as file:
            os.fchmod(number, 0o644)  # whoever answers may be another user
            json.dump(document, file, indent=1)
            file.flush()
            os.fsync(number)
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _read(folder: int, request_id: str, suffix: str) -> _Reply:
    """The reply in a file, which anybody may have put there.

    Raises:
        _NotYetError: There is none so far.
        ValueError: It is none.
    """
    try:
        # A link could name any file of ours, a pipe would block.
        file = os.open(f"{request_id}{suffix}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        raise _NotYetError from None
    except OSError as error:
        raise ValueError(f"it cannot be opened ({error.strerror})") from None
    try:
        known = os.fstat(file)
        if not stat.S_ISREG(known.st_mode):
            raise ValueError("it is no regular file")
        with os.fdopen(file, "rb", closefd=False) as opened:
            data = opened.read(_MAX_BYTES + 1)
    finally:
        os.close(file)
    if len(data) > _MAX_BYTES:
        raise ValueError(f"it has more than {_MAX_BYTES} bytes")
    settled = abs(time.time() - known.st_mtime) > _SETTLED_S
    if suffix == ".md":
        if not settled:
            raise _NotYetError
        return _Reply(request_id, data.decode("utf-8", "replace"), "end_turn", Usage())
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        if settled:
            raise ValueError(f"it is no JSON ({type(error).__name__})") from None
        raise _NotYetError from None
    return _checked(document, request_id)


def _checked(document: object, request_id: str) -> _Reply:
    if not isinstance(document, dict) or not set(document) <= _KEYS:
        raise ValueError(f"it must be an object with {', '.join(sorted(_KEYS))}")
    if not isinstance(document.get("reply"), str) or len(document["reply"]) > MAX_REPLY_CHARS:
        raise ValueError(f"reply must be text of at most {MAX_REPLY_CHARS} characters")
    if document.get("id", request_id) != request_id:
        raise ValueError("its id is another one")
    stop_reason = document.get("stop_reason", "end_turn")
    if not isinstance(stop_reason, str) or stop_reason not in _STOP_REASONS:
        raise ValueError(f"stop_reason must be one of {', '.join(sorted(_STOP_REASONS))}")
    usage = document.get("usage", {})
    if not isinstance(usage, dict) or not set(usage) <= _USAGE_KEYS:
        raise ValueError(f"usage must be an object with {', '.join(sorted(_USAGE_KEYS))}")
    return _Reply(request_id, document["reply"], stop_reason, Usage(**{key: token_count(usage[key]) for key in usage}))
