"""Whether a text matches a grammar, and where it first does not: a look at the text, some 10 µs a byte."""

from __future__ import annotations

import functools
import re
import time
from dataclasses import dataclass

import llguidance

from operators.grammar.forms import Grammar, any_module

_LIMITS = llguidance.LLParserLimits(
    max_items_in_row=100_000, step_max_items=2_000_000, initial_lexer_fuel=50_000_000, step_lexer_fuel=5_000_000
)
"""Of llguidance; its own are for masks over a vocabulary, where a row holds far fewer items than a long expression has here."""

PATIENCE_S = 5.0
"""Of one check, in seconds of the processor, so that other work on the machine changes no verdict. A chain of conditions or lambdas, as
a small model may write it for ever, takes a time that grows with the cube of its length: one of 12 kB takes 11 s, and one of 200 kB
would take days."""

_PART = 500
"""Bytes between two looks at the clock."""

_SHOWN = 60
"""Bytes before the violation that are quoted."""

_UNITS = (2, 3, 8)
"""Blanks of a level, besides four."""

_INDENTED = re.compile(r"^(?:(?:def|class)\b[^\n]*|\)[^\n]*):[ \t]*(?:#[^\n]*)?\n+(?P<blanks>[ ]+)\S", re.MULTILINE)


@dataclass(frozen=True)
class Violation:
    """Where a text leaves a grammar.

    Attributes:
        byte: Offset of the first byte after which no continuation can match; the length of the text where it only ends too early.
        line, column: The same for people, from 1.
        before: The text right before it.
        found: The character there; empty at the end.
    """

    byte: int
    line: int
    column: int
    before: str
    found: str

    def __str__(self) -> str:
        what = f"{self.found!r} cannot follow" if self.found else "the text cannot end after"
        return f"byte {self.byte} (line {self.line}, column {self.column}): {what} {self.before!r}"


def violation(text: str, grammar: Grammar, *, lenient: bool = False, patience_s: float = PATIENCE_S) -> Violation | None:
    """Where `text` leaves `grammar`; None where it matches.

    Args:
        text: Any text.
        grammar: See `operators.grammar.forms`.
        lenient: For text that was written without the grammar: as the notation's check form reads it.
        patience_s: A text that takes longer is left to the compiler.

    Raises:
        RuntimeError: llguidance refuses a grammar of ours.
    """
    data = text.encode("utf-8", "replace")
    matcher = _compiled(grammar, lenient).deep_copy()
    read, ends = 0, time.thread_time() + patience_s
    while part := data[read : read + _PART]:
        taken = matcher.try_consume_tokens(list(part))
        read += taken
        if taken < len(part):
            break
        if time.thread_time() > ends:
            return None
    if read == len(data) and matcher.is_accepting():
        return None
    if matcher.is_error():
        return None  # not a violation: a text that is too complex for the check is left to the compiler
    return _at(data, read)


def module_violation(source: str, *, strict: bool = True) -> Violation | None:
    """Where a module leaves the grammar of Triton modules, whatever its unit of indentation is; None where it matches.

    Args:
        source: Text of a module.
        strict: Names after ``tl.`` must be of the installed Triton.
    """
    found = _INDENTED.search(source)
    unit = len(found["blanks"]) if found and len(found["blanks"]) in _UNITS else 4
    return violation(source, any_module(unit, strict=strict), lenient=True)


def _at(data: bytes, read: int) -> Violation:
    before = data[:read].decode("utf-8", "ignore")
    found = data[read:].decode("utf-8", "ignore")[:1]
    line = before.count("\n") + 1
    column = len(before) - (before.rfind("\n") + 1) + 1
    return Violation(read, line, column, before[-_SHOWN:], found)


@functools.lru_cache(maxsize=64)
def _compiled(grammar: Grammar, lenient: bool) -> llguidance.LLMatcher:
    text = grammar.lenient_lark if lenient else grammar.lark
    matcher = llguidance.LLMatcher(_bytes(), text, log_level=0, limits=_LIMITS)
    if matcher.is_error():
        raise RuntimeError(f"llguidance refuses the grammar {grammar.form}: {matcher.get_error()[:500]}")
    return matcher


@functools.cache
def _bytes() -> llguidance.LLTokenizer:
    """One token a byte, and one for the end."""
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()), slices=[])


class _Bytes:
    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([value]) for value in range(256)), b"<end>")
    special_token_ids = (256,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)
