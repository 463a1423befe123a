"""How alike two kernel modules are: equal but for layout and names of local variables, or similar by the tokens they share.

Text only: nothing is run, and what cannot be parsed is still compared by its tokens.
"""

from __future__ import annotations

import ast
import functools
import keyword
import re
import zlib

from evo.records import content_id
from evo.syntax import module_tree

SHINGLE = 5
"""Tokens in a row that are compared as one: fewer find everything alike, more find nothing."""

NEAR = 0.95
"""Share of common shingles from which on two modules are near duplicates."""

_TOKEN = re.compile(
    r"(?P<comment>#[^\n]*)|(?P<text>(?:[rbuf]{0,2})(?:\"\"\".*?\"\"\"|'''.*?'''|\"[^\"\n]*\"|'[^'\n]*'))"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<number>\d[\w.]*)|(?P<mark>[^\s\w])",
    re.DOTALL | re.IGNORECASE,
)
_LIBRARIES = frozenset({"tl", "triton", "torch", "math", "libdevice"})
_UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
_SCOPES = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
    ast.Global,
    ast.Nonlocal,
    ast.NamedExpr,
    ast.Import,
    ast.ImportFrom,
    ast.ExceptHandler,
    ast.Match,
)
"""What makes a function's names mean more than one thing; such a function keeps them."""


def normal_form(source: str) -> str | None:
    """A hash that modules share which differ in layout, comments, docstrings and names of local variables only; None if unparsable."""
    try:
        return content_id(ast.dump(_normal_tree(source)))
    except _UNPARSABLE:
        return None


@functools.lru_cache(maxsize=2048)
def normal_text(source: str) -> str | None:
    """The text that such modules share, with names of local variables by their order; None if unparsable."""
    try:
        return ast.unparse(_normal_tree(source))
    except _UNPARSABLE:
        return None


def similarity(first: str, second: str) -> float:
    """Share of common shingles (Jaccard), from 0 to 1; names that a module chooses and numbers do not count."""
    a, b = shingles(first), shingles(second)
    shared = len(a & b)
    return shared / (len(a) + len(b) - shared) if a or b else 1.0


@functools.lru_cache(maxsize=2048)
def shingles(source: str, *, names: bool = False) -> frozenset[int]:
    """Hashes of all runs of `SHINGLE` tokens.

    Args:
        source: Any text.
        names: Whether every name and number counts as it stands; otherwise only keywords and what follows ``tl.`` and the like do.
    """
    tokens = _tokens(source, names)
    if len(tokens) <= SHINGLE:
        return frozenset({zlib.crc32(" ".join(tokens).encode())}) if tokens else frozenset()
    return frozenset(
        zlib.crc32(" ".join(tokens[start : start + SHINGLE]).encode("utf-8", "replace"))
        for start in range(len(tokens) - SHINGLE + 1)
    )


def _tokens(source: str, names: bool) -> list[str]:
    tokens: list[str] = []
    kept_after_dot = False
    for match in _TOKEN.finditer(source):
        kind, text = str(match.lastgroup), match[0]
        if kind == "comment":
            continue
        if kind == "name":
            known = names or keyword.iskeyword(text) or text in _LIBRARIES or (kept_after_dot and tokens[-1] == ".")
            kept_after_dot = text in _LIBRARIES or (kept_after_dot and tokens[-1:] == ["."])
            tokens.append(text if known else "n")
            continue
        if kind != "mark" or text != ".":
            kept_after_dot = False
        tokens.append(text if kind == "mark" or names else {"text": "s", "number": "0"}[kind])
    return tokens


def _normal_tree(source: str) -> ast.Module:
    tree = module_tree(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            _rename_locals(node)
    return tree


def _rename_locals(function: ast.FunctionDef) -> None:
    inside = [node for statement in function.body for node in ast.walk(statement)]
    if any(isinstance(node, _SCOPES) for node in inside):
        return
    given = function.args
    parameters = {item.arg for item in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
    parameters |= {item.arg for item in (given.vararg, given.kwarg) if item is not None}
    stored = [node for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    stored.sort(key=lambda node: (node.lineno, node.col_offset))
    renamed: dict[str, str] = {}
    for node in stored:
        if node.id not in parameters:
            renamed.setdefault(node.id, f"local {len(renamed)}")
    for item in inside:
        if isinstance(item, ast.Name):
            item.id = renamed.get(item.id, item.id)
