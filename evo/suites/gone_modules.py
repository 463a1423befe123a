"""Gives kernels of suites that were written for an older Triton what it no longer has: aids of autotuning, which compute nothing."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from evo.syntax import module_tree

GONE: Mapping[str, Mapping[str, str]] = {
    "triton.ops.matmul_perf_model": {
        "early_config_prune": "def early_config_prune(configs, named_args, **kwargs):\n    return configs",
        "estimate_matmul_time": "def estimate_matmul_time(**kwargs):\n    return 0.0",
    }
}
"""Module → name → what stands for it: no configuration is left out, and none is thought to be faster than another."""


def without_gone_modules(source: str) -> tuple[str, tuple[str, ...]]:
    """A kernel module that does not import what is gone, and the names of those modules. Its other lines stay as they are.

    Raises:
        SyntaxError: It does not parse.
    """
    lines, found = source.split("\n"), dict[str, None]()
    for node in reversed(module_tree(source).body):
        known = GONE.get(node.module or "") if isinstance(node, ast.ImportFrom) else None
        if not isinstance(node, ast.ImportFrom) or known is None or any(alias.name not in known for alias in node.names):
            continue
        found[str(node.module)] = None
        made = [known[alias.name] + (f"\n{alias.asname} = {alias.name}" if alias.asname else "") for alias in node.names]
        lines[node.lineno - 1 : node.end_lineno] = ["\n".join(made)]
    return "\n".join(lines), tuple(found)
