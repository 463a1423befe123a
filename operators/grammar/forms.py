"""The grammars that there are: of a module, a kernel, a kernel's body, and of a parent whose kernels' bodies are free."""

from __future__ import annotations

import ast
import functools
import json
from dataclasses import dataclass

from evo.records import content_id
from evo.syntax import module_tree
from operators.grammar.gbnf import gbnf
from operators.grammar.lark import lark
from operators.grammar.namespace import language_names
from operators.grammar.rules import LEVELS, VERSION, rules

MAX_STATEMENTS = 60
"""Statements of one level that a generated kernel or function has: a small model would otherwise not find its end."""

_HEADER = "import torch\nimport triton\nimport triton.language as tl\n"

_STRATEGY = '"Strategy: " SENTENCE_o "\\n```python\\n"'
_END = '"\\n```" "\\n"?'


@dataclass(frozen=True)
class Grammar:
    """What a text has to match. Equal grammars have equal texts in every notation.

    Attributes:
        form: ``module``, ``kernel``, ``body`` or ``skeleton``.
        start: Resolved body of the first rule.
        names: What ``triton.language`` has, in the strict form; empty where any name will do.
        unit: Blanks of one level of indentation.
    """

    form: str
    start: str
    names: tuple[str, ...] = ()
    unit: int = 4

    @property
    def hash(self) -> str:
        """Of the language: version, form, start and names."""
        return content_id(str(VERSION), self.form, self.start, str(self.unit), *self.names)

    @functools.cached_property
    def lark(self) -> str:
        """For llguidance, and vLLM through it; and for the check of what came back."""
        return lark(self._rules(tidy=True), unit=self.unit, tidy=True, names=self.names)

    @functools.cached_property
    def gbnf(self) -> str:
        """For llama.cpp and Fireworks; SGLang's EBNF (xgrammar) is the same notation."""
        return gbnf(self._rules(tidy=True), unit=self.unit, names=self.names)

    @functools.cached_property
    def lenient_lark(self) -> str:
        """For checking text that was written without the grammar: any blanks and comments, and words are read to their ends."""
        return lark(self._rules(tidy=False), unit=self.unit, tidy=False, names=self.names)

    def _rules(self, *, tidy: bool) -> dict[str, str]:
        return rules(tidy=tidy, strict=bool(self.names)) | {"start": self.start}


def any_module(unit: int = 4, *, strict: bool = True) -> Grammar:
    """Whatever module Triton kernels may stand in."""
    start = "NEWLINE_0? (statement_h0 (NEWLINE_0 statement_h0)*)? NEWLINE_0?"
    return Grammar("module", start, language_names() if strict else (), unit)


def module_reply(entry: str, *, strict: bool = True) -> Grammar:
    """A reply with a strategy and a module of the house form: imports, knobs, kernels and the entry last.

    Raises:
        ValueError: `entry` is no name.
    """
    if not entry.isidentifier():
        raise ValueError(f"entry {entry!r} is no name")
    knobs = '"CONFIG = {" value (\',\'i value)* "}\\nSPACE = {" choices (\',\'i choices)* "}"'
    functions = f'(NEWLINE_0 kernel_h0){{1,4}} NEWLINE_0 "def {entry}(" parameters_hi? ")" entry_block'
    start = f'{_STRATEGY} {_quoted(_HEADER)} "\\n" {knobs} {functions} {_END}'
    return Grammar("module", start, language_names() if strict else ())


def kernel(*, strict: bool = True) -> Grammar:
    """One function under ``@triton.jit``."""
    return Grammar("kernel", "kernel_h0 NEWLINE_0?", language_names() if strict else ())


def body(*, strict: bool = True) -> Grammar:
    """The statements of a kernel at module level, the first line's indentation included."""
    start = f'"    " statement_j1 (NEWLINE_1 statement_j1){{0,{MAX_STATEMENTS}}} NEWLINE_0?'
    return Grammar("body", start, language_names() if strict else ())


def skeleton_reply(source: str, *, strict: bool = True) -> Grammar | None:
    """A reply with a strategy and the module as it is but for the bodies of its kernels, which are free.

    Signatures, launchers and knobs are fixed by the parent.

    Returns:
        None where the module has no kernel whose body can be freed: none at all, odd indentation, tabs, or text that does not parse.
    """
    spans = _bodies(source)
    if not spans or "```" in source:
        return None
    lines = source.strip("\n").split("\n")
    parts: list[str] = []
    done = 0
    for first, last, level in spans:
        parts.append(_quoted("\n".join(lines[done:first])))
        parts.append(f"(NEWLINE_{level} statement_j{level}){{1,{MAX_STATEMENTS}}}")
        lines[last - 1] = ""  # what follows a body begins with the end of its last line
        done = last - 1
    rest = "\n".join(lines[done:])
    parts += [_quoted(rest)] if rest else []
    return Grammar("skeleton", f"{_STRATEGY} {' '.join(parts)} {_END}", language_names() if strict else ())


def _bodies(source: str) -> list[tuple[int, int, int]]:
    """Lines [first, last) and level of each kernel's body."""
    try:
        tree = module_tree(source.strip("\n"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(_is_jit(item) for item in node.decorator_list):
            level, odd = divmod(node.col_offset + 4, 4)
            first = node.body[0]
            if odd or level >= LEVELS or first.col_offset != 4 * level or first.lineno == node.lineno or node.end_lineno is None:
                return []
            found.append((first.lineno - 1, node.end_lineno, level))
    return sorted(found)


def _is_jit(decorator: ast.expr) -> bool:
    if isinstance(decorator, ast.Call):
        decorator = decorator.func
    return isinstance(decorator, ast.Attribute) and decorator.attr == "jit"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
