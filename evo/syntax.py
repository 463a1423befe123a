"""Python text to its syntax tree, also where another parse begins before one has ended.

CPython 3.11 counts the depth of a tree in one place per interpreter while it builds it. Garbage collection during that time may run
Python code, and that code may parse: a destructor that fails is printed with a traceback, and `traceback` parses the line for its
carets; a callback of the collector lets another thread go on. The count is then off and the outer parse ends as
`SystemError: AST constructor recursion depth mismatch`, though nothing is wrong with the text
(https://github.com/python/cpython/issues/106905). All our parsing goes through here, where such a parse is done again.
"""

from __future__ import annotations

import ast
from typing import cast

_ATTEMPTS = 10
"""Each needs a collection with such code in the milliseconds of its own parse to fail."""


def module_tree(text: str) -> ast.Module:
    """The tree of a whole module. Raises what `ast.parse` does: SyntaxError (ValueError for a null character), RecursionError."""
    return cast("ast.Module", _parsed(text, "exec"))


def expression_tree(text: str) -> ast.expr:
    """The tree of one expression; raises as `module_tree` does."""
    return cast("ast.Expression", _parsed(text, "eval")).body


def _parsed(text: str, mode: str) -> ast.AST:
    for _ in range(_ATTEMPTS - 1):
        try:
            return ast.parse(text, mode=mode)
        except SystemError as error:
            if "recursion depth mismatch" not in str(error):
                raise
    return ast.parse(text, mode=mode)
