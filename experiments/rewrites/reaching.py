"""Which functions of a module its calls reach, and whether a child changes one of those: a change that nothing runs proves nothing."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection
from typing import Any

from triton.runtime.interpreter import InterpretedFunction

from evo.syntax import module_tree

MARK = "__reached__"


def marked(source: str) -> ast.Module:
    """A module whose functions, but not its kernels, put their names into a set `MARK` when they are called."""
    tree = module_tree(source)
    for name, function in _functions(tree):
        if not _is_kernel(function):
            note = module_tree(f"{MARK}.add({name!r})").body[0]
            at = 1 if ast.get_docstring(function) is not None else 0
            function.body.insert(at, ast.copy_location(note, function.body[0]))
    return ast.fix_missing_locations(tree)


def noting(reached: set[str]) -> Callable[[], None]:
    """Lets Triton's interpreter put the names of kernels into a set; returns what ends that."""
    plain = InterpretedFunction.rewrite

    def rewrite(self: Any) -> Any:
        reached.add(self.fn.__name__)
        return plain(self)

    InterpretedFunction.rewrite = rewrite

    def end() -> None:
        InterpretedFunction.rewrite = plain

    return end


def reaches(source: str, child: str, reached: Collection[str]) -> bool:
    """Whether calls that reach these functions of a module run what its child changes: a kernel if it changes any, else a function."""
    before, after = _texts(source), _texts(child)
    changed = {name: kernel for name, (text, kernel) in before.items() if after.get(name, ("", kernel))[0] != text}
    kernels = {name for name, kernel in changed.items() if kernel}
    return not changed or any(name in reached for name in kernels or changed)


def functions_of(source: str) -> frozenset[str]:
    """Names of a module's functions and kernels."""
    return frozenset(_texts(source)) if source else frozenset()


def _texts(source: str) -> dict[str, tuple[str, bool]]:
    return {name: (ast.dump(function), _is_kernel(function)) for name, function in _functions(module_tree(source))}


def _functions(tree: ast.Module) -> list[tuple[str, ast.FunctionDef]]:
    """Those of the module and of its classes."""
    found = [(item.name, item) for item in tree.body if isinstance(item, ast.FunctionDef)]
    for item in tree.body:
        if isinstance(item, ast.ClassDef):
            found += [(f"{item.name}.{part.name}", part) for part in item.body if isinstance(part, ast.FunctionDef)]
    return found


def _is_kernel(function: ast.FunctionDef) -> bool:
    return any("jit" in ast.unparse(item) for item in function.decorator_list)
