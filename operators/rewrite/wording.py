"""Words expressions of a kernel without the names that stand for one thing, so that they can be compared whatever those are."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Set

from operators.source import Kernel, called


class Wording:
    """What stands behind the names of a kernel that are assigned to once, and whose value nothing changes afterwards."""

    def __init__(self, kernel: Kernel) -> None:
        self._written = Counter(n.id for n in ast.walk(kernel.tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        self._written.update(kernel.parameters)
        self._values: dict[str, ast.expr] = {}
        for node in ast.walk(kernel.tree):
            target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
            if isinstance(target, ast.Name) and self._written[target.id] == 1 and not _reads_memory(node.value):  # type: ignore[attr-defined]
                self._values[target.id] = node.value  # type: ignore[attr-defined]
        while True:
            loose = [name for name, value in self._values.items() if not self._is_steady(value)]
            if not loose:
                break
            for name in loose:
                del self._values[name]

    def of(self, node: ast.expr, later: Set[str] = frozenset()) -> tuple[str, frozenset[str]]:
        """An expression in words that depend on no choice of names, and all names that it depends on; those in `later` stay."""
        used: set[str] = set()
        return ast.dump(_Inliner(self._values, later, used).visit(copy.deepcopy(node))), frozenset(used)

    def _is_steady(self, value: ast.expr) -> bool:
        names = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
        return all(self._written[name] <= 1 for name in names)


class _Inliner(ast.NodeTransformer):
    def __init__(self, values: dict[str, ast.expr], later: Set[str], used: set[str]) -> None:
        self._values, self._later, self._used = values, later, used

    def visit_Name(self, node: ast.Name) -> ast.expr:
        self._used.add(node.id)
        if node.id not in self._values or node.id in self._later:
            return node
        result: ast.expr = self.visit(copy.deepcopy(self._values[node.id]))
        return result


def _reads_memory(value: ast.expr) -> bool:
    return any(
        called(node) in ("load", "rand", "randn", "randint") or called(node).startswith("atomic") for node in ast.walk(value)
    )
