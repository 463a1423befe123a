"""Rules in the notation of llguidance, which vLLM understands as well.

A terminal is a token with the blanks after it; the longest match wins, so letters that touch are one word and words need no blanks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from operators.grammar.rules import rewritten, tokens
from operators.grammar.words import BLANKS, IDENTIFIER, LITERALS, NAMES, TERMINALS, TIDY_BLANKS, newline, qualified

HEADER = "%llguidance {}\n"
"""Makes vLLM use llguidance."""


def lark(rules: Mapping[str, str], *, unit: int, tidy: bool, names: Sequence[str]) -> str:
    """The rules that ``start`` reaches, and their terminals.

    Args:
        rules: Resolved ones (`operators.grammar.rules.rules`).
        unit: Blanks of one level of indentation.
        tidy: For generated text: few blanks.
        names: What may follow ``tl.`` in the strict form.
    """
    reached, spelled, terminals = ["start"], {}, dict[str, str]()
    for name in reached:
        for token in tokens(rules[name]):
            if token in rules:
                spelled[token] = token
                reached += [] if token in reached else [token]
            elif token not in spelled:
                spelled[token] = f"T{len(terminals)}" if token.startswith(("'", '"')) else token.upper()
                terminals[spelled[token]] = _terminal(token, unit, tidy, names)
    blanks = TIDY_BLANKS if tidy else BLANKS
    shared = {
        **{kind + "_WORD": f"{_regex(IDENTIFIER)} & ~{_regex('|'.join(words))}" for kind, words in NAMES.items()},
        **{f"BLANKS_{place}": _regex(text) for place, text in blanks.items()},
    }
    lines = [f"{name.upper()}: {body}" for name, body in (*shared.items(), *terminals.items())]
    return HEADER + "\n".join([f"{name}: {rewritten(rules[name], spelled)}" for name in reached] + lines) + "\n"


def _terminal(token: str, unit: int, tidy: bool, names: Sequence[str]) -> str:
    if token.startswith('"'):
        return token
    kind, _, place = token.rpartition("'" if token.startswith("'") else "_")
    if kind == "NEWLINE":
        return _regex(newline(int(place) * unit, tidy=tidy))
    if kind in LITERALS:
        return _regex(LITERALS[kind])
    blanks = f"BLANKS_{place.upper()}"
    if kind.startswith("'"):
        needed = "[ ]" if tidy and kind.endswith(" ") else ""
        return f"{_regex(re.escape(kind[1:].strip()) + needed)} {blanks}"
    if kind in NAMES:
        return f"{kind}_WORD {blanks}"
    return f"{_regex(qualified(names) if kind == 'QUALIFIED' else TERMINALS[kind])} {blanks}"


def _regex(text: str) -> str:
    return "/" + re.sub(r"(?<!\\)/", r"\/", text) + "/"
