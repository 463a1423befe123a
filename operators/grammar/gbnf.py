"""Rules in the notation of llama.cpp (and Fireworks, and xgrammar's EBNF in SGLang): characters instead of tokens.

Nothing here looks ahead, so words that touch letters ask for a blank, and a name is spelled as whatever is no keyword.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from operators.grammar.rules import rewritten, tokens
from operators.grammar.words import LITERALS, NAMES, TERMINALS, TIDY_BLANKS, newline, qualified

_LETTERS = "A-Za-z0-9_"
_PART = re.compile(r"\{\d+,\d+\}|\[(?:\\.|[^\]\\])*\]|\\.|[()|?*+]|[^\\]")


def gbnf(rules: Mapping[str, str], *, unit: int, names: Sequence[str]) -> str:
    """The rules that ``start`` reaches (there ``root``), and their terminals, for generated text.

    Args:
        rules: Resolved ones (`operators.grammar.rules.rules`).
        unit: Blanks of one level of indentation.
        names: What may follow ``tl.`` in the strict form.
    """
    reached, spelled, terminals = ["start"], {"start": "root"}, dict[str, str]()
    for name in reached:
        for token in tokens(rules[name]):
            if token in rules:
                spelled[token] = token.replace("_", "-")
                reached += [] if token in reached else [token]
            elif token not in spelled:
                spelled[token] = f"t{len(terminals)}" if token.startswith(("'", '"')) else token.lower().replace("_", "-")
                terminals[spelled[token]] = _terminal(token, unit, names)
    shared = {
        **{f"{kind.lower()}-word": _other_than(words) for kind, words in NAMES.items()},
        **{f"blanks-{place}": _characters(text) for place, text in TIDY_BLANKS.items()},
    }
    lines = [f"{name} ::= {body}" for name, body in (*shared.items(), *terminals.items())]
    return "\n".join([f"{spelled[name]} ::= {rewritten(rules[name], spelled)}" for name in reached] + lines) + "\n"


def _terminal(token: str, unit: int, names: Sequence[str]) -> str:
    if token.startswith('"'):
        return token
    kind, _, place = token.rpartition("'" if token.startswith("'") else "_")
    if kind == "NEWLINE":
        return _characters(newline(int(place) * unit, tidy=True))
    if kind in LITERALS:
        return _characters(LITERALS[kind])
    blanks = f"blanks-{place}"
    if kind.startswith("'"):
        word = kind[1:]
        before = '" " ' if word.startswith(" ") else ""
        after = '" " ' if word.endswith(" ") else ""
        return f'{before}"{word.strip()}" {after}{blanks}'
    if kind in NAMES:
        return f"{kind.lower()}-word {blanks}"
    return f"({_characters(qualified(names) if kind == 'QUALIFIED' else TERMINALS[kind])}) {blanks}"


def _characters(regex: str) -> str:
    """A regular expression of our subset, spelled out."""
    made: list[str] = []
    for part in _PART.findall(regex):
        if part in "()|?*+" or part.startswith("{"):
            made.append(part)
        elif part.startswith("["):
            made.append(part.replace("\\f", "\\x0c").replace("\\+", "+").replace("\\^", "\\x5e").replace("\\-", "\\x2d"))
        else:
            made.append(_quoted({"\\n": "\n", "\\t": "\t"}.get(part, part.removeprefix("\\") or "\\")))
    return re.sub(r" ([?*+{])", r"\1", " ".join(made))


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t") + '"'


def _other_than(words: Collection[str]) -> str:
    """Identifiers that are none of the words, branch by branch of the tree of the words' beginnings."""

    def branch(begun: str) -> str:
        nexts = sorted({word[len(begun)] for word in words if word.startswith(begun) and word != begun})
        ways = [f'"{letter}" ({branch(begun + letter)})' for letter in nexts]
        allowed = "".join(letter for letter in _SPELLED if letter not in nexts and (begun or not letter.isdigit()))
        ways.append(f"[{allowed}] [{_LETTERS}]*")
        return " | ".join(ways if begun in words or not begun else [*ways, '""'])

    return branch("")


_SPELLED = "ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz0123456789"
