"""Through which parameters a kernel loads and stores, and whether a program may load what it stored itself."""

from __future__ import annotations

import ast

from operators.rewrite.guards import Definitions
from operators.source import Kernel, Launch, NotApplicableError, called, code


def bases(kernel: Kernel) -> dict[ast.Call, str]:
    """Every access to memory → the parameter it goes through, empty where that is not clear (descriptors, moved pointers)."""
    definitions, found, moved = Definitions(kernel), {}, _moved(kernel)
    for node in ast.walk(kernel.tree):
        if isinstance(node, ast.Call) and (_method(node) in ("load", "store") or called(node).startswith("atomic")):
            found[node] = _base(definitions, moved, node.args[0]) if called(node) and node.args else ""
    return found


def _base(definitions: Definitions, moved: dict[str, ast.expr], node: ast.expr) -> str:
    seen: set[str] = set()
    node = definitions.resolve(node)
    while isinstance(node, ast.BinOp) or (isinstance(node, ast.Name) and node.id in moved and node.id not in seen):
        if isinstance(node, ast.Name):
            seen.add(node.id)
        node = definitions.resolve(node.left if isinstance(node, ast.BinOp) else moved[node.id])
    return node.id if isinstance(node, ast.Name) and node.id in definitions.parameters else ""


def _moved(kernel: Kernel) -> dict[str, ast.expr]:
    """What names that are moved along by `name += step` alone begin as."""
    stored = [n.id for n in ast.walk(kernel.tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    steps = [n.target.id for n in ast.walk(kernel.tree) if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)]
    first: dict[str, ast.expr] = {}
    for node in ast.walk(kernel.tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and len(node.targets) == 1:
            first[node.targets[0].id] = node.value
    return {name: value for name, value in first.items() if name in steps and stored.count(name) == steps.count(name) + 1}


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def stores(call: ast.Call) -> bool:
    """Whether an access writes; atomics do both."""
    return _method(call) != "load"


def check_order(kernel: Kernel, launch: Launch) -> None:
    """Raises NotApplicableError where a program may load what it stored, which a pipelined loop over programs would do too early."""
    loops = [set(ast.walk(node)) for node in ast.walk(kernel.tree) if isinstance(node, ast.For | ast.While)]
    given = {name: code(item.value) for name, item in launch.arguments.items()}  # one tensor may go by two names
    accesses = {call: given.get(base, base) for call, base in bases(kernel).items()}
    for store, base in accesses.items():
        for load, other in accesses.items():
            if stores(store) and load is not store and _method(load) != "store" and (base == other or "" in (base, other)):
                after = (load.lineno, load.col_offset) > (store.lineno, store.col_offset)
                if after or any(store in loop and load in loop for loop in loops):
                    raise NotApplicableError(f"a program of {kernel.name} may load what it stored")
