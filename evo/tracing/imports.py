"""What a kernel module may import: the rule that prompts state, read from a module's text before anything of it runs.

The sandbox makes other imports useless, not impossible. Where attempts are rewarded or punished, as in training, the attempt counts.
"""

from __future__ import annotations

import ast

from evo.syntax import module_tree

ALLOWED_IMPORTS = frozenset(
    {
        "__future__", "math", "typing", "torch", "torch.nn", "torch.nn.functional", "triton", "triton.language",
        "triton.language.extra", "triton.language.extra.libdevice", "triton.tools.tensor_descriptor",
    }
)  # fmt: skip


def foreign_imports(source: str) -> tuple[str, ...]:
    """Names of modules that a kernel module imports and has no business with, sorted; none where it does not parse (lint says so)."""
    try:
        tree = module_tree(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return tuple(sorted(found - ALLOWED_IMPORTS))
