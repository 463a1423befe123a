"""The names that the installed Triton's language has, read from its text: nothing of Triton is imported."""

from __future__ import annotations

import ast
import functools
import importlib.util
from pathlib import Path

from evo.syntax import module_tree


@functools.cache
def language_names() -> tuple[str, ...]:
    """What ``triton.language`` exports, its modules included, sorted; empty where no Triton is installed."""
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return ()
    folder = Path(spec.origin).with_name("language")
    try:
        tree = module_tree((folder / "__init__.py").read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return ()
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
            names |= (
                {node.module.split(".")[0]} if node.level == 1 and node.module else set()
            )  # a module that is imported is there
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List) and ast.unparse(node.targets[0]) == "__all__":
            names |= {item.value for item in node.value.elts if isinstance(item, ast.Constant) and isinstance(item.value, str)}
    return tuple(sorted(name for name in names if name.isidentifier() and not name.startswith("_")))
