"""Through which parameters a kernel loads and stores, and whether a program may load what it stored itself."""

from __future__ import annotations

import ast

from operators.rewrite.guards import Definitions
from operators.source import Kernel, Launch, NotApplicableError, called, code


def bases(kernel: Kernel) -> dict[ast.Call, str]:
    """Every access to memory → the parameter it goes through, empty where that is not clear (descriptors, moved pointers)."""
    definitions, found = Definitions(kernel), {}
    for node in ast.walk(kernel.tree):
        if isinstance(node, ast.Call) and (_method(node) in ("load", "store") or called(node).startswith("atomic")):
            base = definitions.resolve(node.args[0]) if called(node) and node.args else node
            while isinstance(base, ast.BinOp):
                base = definitions.resolve(base.left)
            found[node] = base.id if isinstance(base, ast.Name) and base.id in kernel.parameters else ""
    return found


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
