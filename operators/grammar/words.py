"""The terminals of the grammar as regular expressions, in a subset that every notation can say: classes, groups, ``| ? * +``, counts."""

from __future__ import annotations

import keyword
from collections.abc import Sequence

KEYWORDS = tuple(keyword.kwlist)
"""Words that are no names. Soft keywords (``match``, ``type``) are names here."""

IDENTIFIER = "[A-Za-z_][A-Za-z0-9_]*"

NAMES = {"NAME": KEYWORDS, "OTHER": (*KEYWORDS, "jit"), "UNQUALIFIED": (*KEYWORDS, "tl")}
"""Terminals that are identifiers, and which they are not."""

_DIGITS = "[0-9](_?[0-9])*"
_EXPONENT = f"([eE][+\\-]?{_DIGITS})"
_PLAIN = '"([^"\\\\\\n]|\\\\[^\\x00])*"'
_PLAIN_SINGLE = "'([^'\\\\\\n]|\\\\[^\\x00])*'"
_LONG = '"""(("|"")?([^"\\\\]|\\\\[^\\x00]))*"""'
_LONG_SINGLE = "'''(('|'')?([^'\\\\]|\\\\[^\\x00]))*'''"


def _formatted(quote: str) -> str:
    """An f-string between single `quote` characters: braces are balanced, and fields are not empty; formats may hold fields."""
    other = f"[^{quote}\\\\\\n{{}}]"
    field = f"[{{]{other}+([{{]{other}*[}}]{other}*)*[}}]"
    return f"{quote}({other}|\\\\[^N{{}}]|[{{][{{]|[}}][}}]|{field})*{quote}"


def _formatted_long(quote: str) -> str:
    other = f"[^{quote}\\\\{{}}]"
    inner = f"({other}|{quote})"
    field = f"[{{]{inner}+([{{]{inner}*[}}]{inner}*)*[}}]"
    return f"{quote * 3}(({quote}|{quote * 2})?({other}|\\\\[^N{{}}]|[{{][{{]|[}}][}}]|{field}))*{quote * 3}"


TERMINALS = {
    "NUMBER": (
        f"0[xX](_?[0-9a-fA-F])+|0[bB](_?[01])+|0[oO](_?[0-7])+|(([1-9](_?[0-9])*|0(_?0)*)|{_DIGITS}[jJ]|"
        f"({_DIGITS}\\.({_DIGITS})?|\\.{_DIGITS}){_EXPONENT}?[jJ]?|{_DIGITS}{_EXPONENT}[jJ]?)"
    ),
    "STRING": (
        f"([rRbBuU]|[bB][rR]|[rR][bB])?({_LONG}|{_LONG_SINGLE}|{_PLAIN}|{_PLAIN_SINGLE})|"
        f"""([fF]|[fF][rR]|[rR][fF])({_formatted_long('"')}|{_formatted_long("'")}|{_formatted('"')}|{_formatted("'")})"""
    ),
    "CONSTANT": "True|False|None|\\.\\.\\.",
    "BINARY": "\\*\\*|//|<<|>>|[+\\-*/%@&|\\^]",
    "DOTS": "\\.+",
    "KEY": '"[A-Za-z_][A-Za-z0-9_]*"',
    "INTEGER": "[1-9][0-9]*",
    "SIGN": "[+\\-~]",
    "COMPARE": "==|!=|<=|>=|<|>",
    "AUGMENT": "(\\*\\*|//|<<|>>|[+\\-*/%@&|\\^])=",
}
"""Terminal → regular expression; in every notation blanks may follow."""

LITERALS = {"NEVER": "\\x00", "SENTENCE": "[^ \\t\\n][^\\n]{0,180}"}
"""Terminals that end where they end: no blanks belong to them."""

BLANKS = {"o": "([ \\t\\r\\f]|\\\\\\n)*", "i": "([ \\t\\r\\f\\n]|\\\\\\n|#[^\\n]*\\n)*"}
"""What may follow a terminal outside of brackets, and inside."""

TIDY_BLANKS = {"o": "[ ]?[ ]?", "i": "[ ]?[ ]?(\\n[ ]*)?"}
"""The same where text is generated, so that no model can go on with blanks for ever."""


def qualified(names: Sequence[str]) -> str:
    """``tl.`` with one of the names, as a regular expression."""
    return f"tl\\.({'|'.join(sorted(names, key=len, reverse=True))})"


def newline(indent: int, *, tidy: bool) -> str:
    """The end of a line, blank and comment lines (few, where text is generated), and the blanks before the next statement."""
    if tidy:
        comment = " " * indent + "#[^\\n]{0,120}\\n"
        return f"([ ]?[ ]?#[^\\n]{{0,120}})?\\n\\n?\\n?({comment})?({comment})?" + " " * indent
    return "[ \\t\\r\\f]*(#[^\\n]*)?\\n([ \\t\\r\\f]*(#[^\\n]*)?\\n)*" + " " * indent
