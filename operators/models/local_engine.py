"""A GGUF model and its sampling, in the process that calls: llama.cpp for logits, llguidance for what may come next."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llguidance
import numpy as np

MAGIC = b"GGUF"

_PIECE_BYTES = 512
_TEMPLATE_BYTES = 1 << 18
_LIKELY = 1_024
"""Tokens among which the likely ones are mostly found."""


class LocalModelError(Exception):
    """A model that cannot be loaded or asked; the text says why in one line."""


@dataclass(frozen=True)
class Wanted:
    """A request.

    Attributes:
        messages: Role and content of each, as chat templates take them.
        max_tokens: Longest reply.
        temperature: Of sampling; 0 takes the likeliest token.
        top_p: Tokens below this share of the probability are not drawn.
        seed: Of all randomness.
        grammar: In Lark; empty for any text.
    """

    messages: tuple[Mapping[str, str], ...]
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    grammar: str


@dataclass(frozen=True)
class Given:
    """A reply, its stop reason in the words of exchanges, and tokens read, found in the cache, and written."""

    reply: str
    stop: str
    read: int
    cached: int
    written: int


class LocalEngine:
    """One model with one sequence; the beginning that a prompt shares with the last one is not read again.

    Args:
        path: A GGUF file.
        context: Tokens of prompt and reply together; 0 for as many as the model was trained on, at most 16,384.
        threads: Of the CPU; 0 for llama.cpp's choice.
        gpu_layers: Layers that are kept on a GPU, where llama.cpp was built for one.

    Raises:
        LocalModelError: No such file, no model in it, no memory for it, or llama.cpp is not installed.
    """

    def __init__(self, path: str, *, context: int, threads: int, gpu_layers: int) -> None:
        _check_file(Path(path))
        try:
            from ik_llama_cpp import _ctypes_api, _internals
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except (ImportError, OSError) as error:
            raise LocalModelError(f"llama.cpp is not installed: pip install 'triton-evolve[local]' ({error})") from None
        self._api: Any = _ctypes_api
        self._batches: Any = _internals
        library: Any = self._api._lib
        try:
            self._model: Any = self._batches.IkModel(path, n_gpu_layers=gpu_layers)
        except RuntimeError:
            raise LocalModelError(f"{path} holds no model that llama.cpp can load, or there is no memory for it") from None
        pointer = ctypes.c_void_p(self._model.model)
        trained = int(library.llama_n_ctx_train(pointer))
        self.context = context or min(trained, 16_384)
        try:
            self._context: Any = self._batches.IkContext(self._model, n_ctx=self.context, n_threads=threads, flash_attn=False)
        except RuntimeError:
            raise LocalModelError(f"no memory for a context of {self.context} tokens: lower options.context") from None
        self._library: Any = library
        self._vocabulary, self._ends = self._pieces()
        self._tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Vocabulary(self._vocabulary, self._ends, self._tokens)), eos_token=list(self._ends)
        )
        text = _metadata(library, pointer, b"tokenizer.chat_template")
        try:
            self._template = (
                ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(text) if text else None
            )
        except Exception as error:  # noqa: BLE001 - a template that came with the model
            raise LocalModelError(f"the model's chat template cannot be read: {type(error).__name__}: {error}") from None
        self._held: list[int] = []

    def answer(self, wanted: Wanted, deadline: float = math.inf) -> Given:
        """Writes one reply.

        Args:
            wanted: See `Wanted`.
            deadline: On the monotonic clock; what has been written by then is cut off there.

        Raises:
            LocalModelError: The grammar or the chat template cannot be used, or the prompt could not be read in time; what was read of
                it is remembered.
        """
        prompt = self._tokens(self._rendered(wanted.messages))
        if len(prompt) + 16 > self.context:
            return Given("", "model_context_window_exceeded", 0, 0, 0)
        room = min(wanted.max_tokens, self.context - len(prompt) - 1)
        matcher = self._matcher(wanted.grammar)
        shared = _shared(self._held, prompt[:-1])
        self._keep(shared)
        self._read(prompt[shared:], deadline)
        draw = np.random.default_rng(wanted.seed)
        written: list[int] = []
        stop = ""
        for tokens in self._steps(matcher, wanted, draw):
            if not tokens or tokens[-1] in self._ends:
                stop = "end_turn"
                break
            written += tokens
            if len(written) >= room or time.monotonic() > deadline:
                del written[room:]  # what a grammar forces comes several tokens at a time
                stop = "max_tokens" if room == wanted.max_tokens else "model_context_window_exceeded"
                break
            self._read(tokens)
        reply = b"".join(self._vocabulary[token] for token in written).decode("utf-8", "replace")
        return Given(reply, stop, len(prompt) - shared, shared, len(written))

    def _steps(self, matcher: Any, wanted: Wanted, draw: np.random.Generator) -> Iterator[list[int]]:
        """What comes next, one token or all that the grammar leaves no choice for; nothing at the end."""
        while True:
            if matcher is not None:
                if matcher.is_stopped():
                    if matcher.stop_reason() not in ("NoExtension", "EndOfSentence", "NoExtensionBias"):
                        raise LocalModelError(f"the grammar became too complex ({matcher.stop_reason()})")
                    yield []
                forced = matcher.compute_ff_tokens()
                if forced:
                    matcher.consume_tokens(forced)
                    yield list(forced)
                    continue
            token = self._drawn(matcher, wanted, draw)
            if matcher is not None and not matcher.consume_token(token):
                raise LocalModelError(f"llguidance: {matcher.get_error()[:200]}")
            yield [token]

    def _drawn(self, matcher: Any, wanted: Wanted, draw: np.random.Generator) -> int:
        """One token. It is drawn freely first and with the mask only if the grammar refuses that, which gives the same distribution."""
        logits = np.ctypeslib.as_array(self._context.get_logits(-1), shape=(len(self._vocabulary),)).astype(np.float64)
        token = _sampled(logits, wanted, draw)
        if matcher is None or matcher.validate_tokens([token]) == 1:
            return token
        allowed = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8), bitorder="little")[: len(logits)]
        if not allowed.any():
            raise LocalModelError(f"the grammar leaves nothing to go on with ({matcher.stop_reason()})")
        return _sampled(np.where(allowed, logits, -np.inf), wanted, draw)

    def _read(self, tokens: Sequence[int], deadline: float = math.inf) -> None:
        for start in range(0, len(tokens), 512):
            if time.monotonic() > deadline:
                raise LocalModelError(f"only {start} of {len(tokens)} tokens were read in time: raise options.timeout_s")
            part = list(tokens[start : start + 512])
            batch = self._batches.make_batch_range(part, pos_start=len(self._held))
            failed = self._context.decode(batch)
            self._api.llama_batch_free(batch)
            if failed:
                self._keep(0)
                raise LocalModelError(f"llama.cpp cannot go on (status {failed})")
            self._held += part

    def _keep(self, count: int) -> None:
        """Forgets all but the first tokens that were read."""
        self._library.llama_kv_cache_seq_rm(ctypes.c_void_p(self._context.ctx), 0, count, -1)
        self._held = self._held[:count]

    def _matcher(self, grammar: str) -> Any:
        if not grammar:
            return None
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise LocalModelError(f"llguidance refuses the grammar: {' '.join(matcher.get_error().split())[:200]}")
        return matcher

    def _rendered(self, messages: Sequence[Mapping[str, str]]) -> str:
        if self._template is None:
            return "\n\n".join(message["content"] for message in messages) + "\n\n"
        try:
            text: str = self._template.render(messages=messages, add_generation_prompt=True, bos_token="", eos_token="")
        except Exception as error:  # noqa: BLE001 - the template came with the model and may do anything that the sandbox lets it
            raise LocalModelError(f"the model's chat template cannot be used: {type(error).__name__}: {error}") from None
        return text

    def _tokens(self, text: str | bytes) -> list[int]:
        plain = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        found: list[int] = self._model.tokenize(plain, add_bos=False, special=isinstance(text, str))
        return found

    def _pieces(self) -> tuple[list[bytes], tuple[int, ...]]:
        """The bytes of every token, empty for special ones, and the tokens that end a reply."""
        model, buffer = self._model.model, ctypes.create_string_buffer(_PIECE_BYTES)
        count = self._model.n_vocab
        pieces = []
        for token in range(count):
            size = self._api.llama_token_to_piece(model, token, buffer, _PIECE_BYTES, 0, False)
            pieces.append(buffer.raw[: max(0, size)])
        return pieces, tuple(token for token in range(count) if self._api.llama_token_is_eog(model, token))


class _Vocabulary:
    """What llguidance asks of a tokenizer."""

    def __init__(self, pieces: Sequence[bytes], ends: Sequence[int], tokens: Any) -> None:
        self.eos_token_id = ends[0]
        self.bos_token_id = None
        # No text may hold the byte 0xff, so that special tokens never stand in a reply that a grammar holds.
        self.tokens = [piece or f"<{number}>".encode().join((b"\xff", b"")) for number, piece in enumerate(pieces)]
        self.special_token_ids = [number for number, piece in enumerate(pieces) if not piece]
        self._tokens = tokens

    def __call__(self, text: bytes) -> list[int]:
        found: list[int] = self._tokens(text)
        return found


def _sampled(logits: np.ndarray, wanted: Wanted, draw: np.random.Generator) -> int:
    if wanted.temperature <= 0:
        return int(np.argmax(logits))
    shares = np.exp((logits - logits.max()) / wanted.temperature)
    wanted_mass = wanted.top_p * shares.sum()
    likely = np.argpartition(shares, -_LIKELY)[-_LIKELY:] if len(shares) > _LIKELY else np.arange(len(shares))
    if shares[likely].sum() < wanted_mass:  # a flat distribution; sorting all of it is slow and seldom needed
        likely = np.arange(len(shares))
    order = likely[np.argsort(shares[likely])[::-1]]
    kept = order[: int(np.searchsorted(np.cumsum(shares[order]), wanted_mass)) + 1]
    chances = shares[kept] / shares[kept].sum()
    return int(kept[int(draw.choice(len(kept), p=chances))])


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Tokens that both begin with."""
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count


def _metadata(library: Any, model: ctypes.c_void_p, key: bytes) -> str:
    buffer = ctypes.create_string_buffer(_TEMPLATE_BYTES)
    size = library.llama_model_meta_val_str(model, key, buffer, ctypes.c_size_t(_TEMPLATE_BYTES))
    return buffer.value.decode("utf-8", "replace") if size > 0 else ""


def _check_file(path: Path) -> None:
    try:
        with path.open("rb") as file:
            begins = file.read(len(MAGIC))
    except OSError as error:
        raise LocalModelError(f"{path} cannot be read: {error.strerror}") from None
    if begins != MAGIC:
        raise LocalModelError(f"{path} is no GGUF model file")
