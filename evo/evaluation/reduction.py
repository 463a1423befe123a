"""Reduces a module to its kernels: the `triton.jit` functions that a plan launches, what they call, and the constants they name.

What is left can be executed without running the module's own Python, since it is checked to be device code: names come from Triton's
language, from parameters and from each other, and nothing reaches for the interpreter's or Python's insides. Line numbers stay.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evo.syntax import module_tree

_MODULES = ("triton", "triton.language", "math", "__future__")
_BUILTINS = frozenset(
    {
        "range",
        "min",
        "max",
        "len",
        "abs",
        "float",
        "int",
        "bool",
        "tuple",
        "list",
        "sum",
        "pow",
        "round",
        "zip",
        "enumerate",
        "print",
    }
)
_OF_TRITON = frozenset({"language", "cdiv", "next_power_of_2", "jit"})
_INSIDES = frozenset(
    {
        *{"handle", "data", "core", "standard", "semantic", "numpy", "sys", "os", "builtins", "inspect"},
        # where Triton's modules lead out of its language, and so to whether a kernel is interpreted
        *{"tl", "knobs", "driver", "ir", "wraps", "constexpr_function", "module_finder", "module_from_spec", "spec", "modules"},
        # of a compiled and of an interpreted function
        *{
            "format",
            "format_map",
            "fn",
            "src",
            "raw_src",
            "params",
            "arg_names",
            "constexprs",
            "signature",
            "warmup",
            "run",
            "cache_key",
        },
        # what changes a list or a dict: compiled once and interpreted once per program, it would hold another state
        *{"append", "extend", "insert", "remove", "pop", "popitem", "clear", "reverse", "update", "setdefault", "discard"},
    }
)
_PYTHONS = sys.stdlib_module_names - {"math", "random", "select"}
"""Modules that Triton's own modules import; its language has some of the same name."""
_JIT_OPTIONS = frozenset({"do_not_specialize", "do_not_specialize_on_alignment", "noinline", "debug"})
_DTYPE = re.compile(r"(u?int|b?float)\d+\w*")
_REFUSED = (
    ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.Lambda, ast.ClassDef, ast.AsyncFunctionDef, ast.Try, ast.TryStar, ast.With,
    ast.Yield, ast.YieldFrom, ast.Await, ast.Delete, ast.JoinedStr, ast.Raise, ast.NamedExpr,
)  # fmt: skip


class NotReducible(Exception):
    """Kernels that cannot be told from the Python around them; the text says why."""


@dataclass(frozen=True)
class _Definition:
    """A top-level statement and the names it needs of others."""

    node: ast.stmt
    needs: frozenset[str]


def reduce_to_kernels(source: str, functions: Iterable[str]) -> str:
    """Source text of those kernels and of what they need, on the lines where it stood.

    Raises:
        NotReducible: A function is not a top-level `triton.jit` function, or is more than device code.
    """
    tree = module_tree(source)
    definitions: dict[str, _Definition] = {}
    imports: list[ast.stmt] = []
    imported: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            part = _allowed_part(node)
            if part is not None:
                imports.append(part)
                imported |= {alias.asname or alias.name for alias in part.names}
        else:
            definitions |= _defined(node)
    kept: dict[str, ast.stmt] = {}
    wanted = list(functions)
    while wanted:
        name = wanted.pop()
        if name in kept or name in imported or name in _BUILTINS:
            continue
        if name not in definitions:
            raise NotReducible(
                f"{name} is not defined at the top level of the module, as a triton.jit function or a plain constant"
            )
        kept[name] = definitions[name].node
        wanted += definitions[name].needs
    return _on_its_lines(source, [*imports, *dict.fromkeys(kept.values())])


def _allowed_part(node: ast.Import | ast.ImportFrom) -> ast.Import | ast.ImportFrom | None:
    """An import with those of its names that are of Triton's language."""
    module = "" if isinstance(node, ast.Import) else node.module or ""
    if isinstance(node, ast.Import):
        names = [alias for alias in node.names if alias.name in _MODULES and (alias.asname or "." not in alias.name)]
        made: ast.Import | ast.ImportFrom = ast.Import(names)
    elif node.level == 0 and (module in _MODULES or module.startswith("triton.language.extra")):
        names = [
            alias
            for alias in node.names
            if alias.name != "*"
            and not alias.name.startswith("_")
            and alias.name not in _INSIDES | _PYTHONS
            and (module != "triton" or alias.name in _OF_TRITON)
        ]
        made = ast.ImportFrom(module, names, 0)
    else:
        return None
    return ast.copy_location(made, node) if names else None


def _defined(node: ast.stmt) -> dict[str, _Definition]:
    if isinstance(node, ast.FunctionDef):
        jit = next((item for item in node.decorator_list if _is_jit(item)), None)
        if jit is None:
            return {}
        node.decorator_list = [_plain_jit(jit)]
        return {node.name: _Definition(node, _needs_of_function(node))}
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        if len(names) == len(targets) and len(ast.unparse(node.value)) <= 1000:
            try:
                needs = _needs([node.value], set())
            except NotReducible:
                return {}
            return {name: _Definition(node, needs) for name in names}
    return {}


def _is_jit(node: ast.expr) -> bool:
    return ast.unparse(node.func if isinstance(node, ast.Call) else node) in ("triton.jit", "jit", "triton.runtime.jit")


def _plain_jit(node: ast.expr) -> ast.expr:
    """The decorator with those of its options that decide on the code."""
    if isinstance(node, ast.Call):
        node.keywords = [item for item in node.keywords if item.arg in _JIT_OPTIONS and _is_literal(item.value)]
        node.args = []
    return node


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True


def _needs_of_function(node: ast.FunctionDef) -> frozenset[str]:
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    extra = [item for item in (node.args.vararg, node.args.kwarg) if item is not None]
    local = {item.arg for item in (*arguments, *extra)}
    # What only a comprehension binds is a name of the module outside of it, where Triton's interpreter adds names of its own.
    inner = {id(item) for part in ast.walk(node) if isinstance(part, ast.comprehension) for item in ast.walk(part.target)}
    stored = [item for item in ast.walk(node) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)]
    local |= {item.id for item in stored if id(item) not in inner}
    if any(id(item) in inner and item.id not in local for item in stored):
        raise NotReducible(f"line {node.lineno} has a comprehension; write its items down, or loop by tl.static_range")
    outside = [item.annotation for item in (*arguments, *extra) if item.annotation is not None]
    outside += [item for item in (*node.args.defaults, *node.args.kw_defaults) if item is not None]
    return _needs([item for item in outside if not isinstance(item, ast.Constant)], set()) | _needs(node.body, local)


def _needs(nodes: Sequence[ast.AST], local: set[str]) -> frozenset[str]:
    """Names that are loaded and not local.

    Raises:
        NotReducible: Something in it is no device code.
    """
    found: set[str] = set()
    messages = {
        id(part)
        for node in nodes
        for call in ast.walk(node)
        if isinstance(call, ast.Call)
        and ast.unparse(call.func).rpartition(".")[2] in ("static_assert", "device_assert", "static_print")
        for argument in call.args
        for part in ast.walk(argument)
        if isinstance(part, ast.JoinedStr | ast.Constant)
    } | {
        id(item.value)
        for node in nodes
        for item in ast.walk(node)
        if isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)
    }
    for node in nodes:
        for item in ast.walk(node):
            if isinstance(item, _REFUSED) and id(item) not in messages:
                raise NotReducible(f"line {getattr(item, 'lineno', 0)} has a {type(item).__name__}, which is no device code")
            if isinstance(item, ast.FunctionDef):
                raise NotReducible(f"line {item.lineno} defines a function inside a function")
            if isinstance(item, ast.Subscript) and not isinstance(item.ctx, ast.Load):
                raise NotReducible(f"line {item.lineno} changes an item, which Triton's tuples and tensors do not let")
            if isinstance(item, ast.Compare):
                _check_identity(item)
            if isinstance(item, ast.Constant) and id(item) not in messages and may_format(item.value):
                raise NotReducible(f"line {item.lineno} has a text with a %, which may format what a compiler spells otherwise")
            if isinstance(item, ast.Attribute):
                _check_attribute(item)
            if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Load) and item.id not in local:
                found.add(item.id)
    return frozenset(found)


def _check_identity(item: ast.Compare) -> None:
    """Only what exists once is the same object wherever a kernel runs: equal numbers are one object to some and two to others."""
    if not any(isinstance(operator, ast.Is | ast.IsNot) for operator in item.ops):
        return
    if not any(_exists_once(side) for side in (item.left, *item.comparators)):
        raise NotReducible(f"line {item.lineno} asks by `is` whether two values are one object; compare them by ==")


def may_format(value: object) -> bool:
    """Whether a constant is text that ``%`` could fill in: Triton's tuples and constants are spelled otherwise than Python's."""
    return isinstance(value, str) and "%" in value


def _exists_once(node: ast.expr) -> bool:
    return (isinstance(node, ast.Constant) and node.value in (None, True, False)) or (
        isinstance(node, ast.Attribute) and _DTYPE.fullmatch(node.attr) is not None
    )


def _check_attribute(item: ast.Attribute) -> None:
    text = f"line {item.lineno} uses .{item.attr}"
    if item.attr.startswith("_") or item.attr in _INSIDES or item.attr in _PYTHONS:
        raise NotReducible(f"{text}, which is none of a kernel's business")
    if isinstance(item.ctx, ast.Store):
        raise NotReducible(f"{text} as a target")
    if isinstance(item.value, ast.Name) and item.value.id == "triton" and item.attr not in _OF_TRITON:
        raise NotReducible(f"{text} of triton; kernels use {', '.join(sorted(_OF_TRITON))} and triton.language")


def _on_its_lines(source: str, nodes: Sequence[ast.stmt]) -> str:
    lines = source.splitlines()
    kept = [""] * len(lines)
    for node in nodes:
        start, end = node.lineno - 1, node.end_lineno or node.lineno
        if isinstance(node, ast.Import | ast.ImportFrom):
            kept[start] = "; ".join(filter(None, [kept[start], ast.unparse(node)]))
            continue
        if isinstance(node, ast.FunctionDef):
            decorator = node.decorator_list[0]
            kept[decorator.lineno - 1] = f"@{ast.unparse(decorator)}"
        if any(kept[start:end]):
            raise NotReducible(f"line {node.lineno} holds several statements")
        kept[start:end] = lines[start:end]
    return "\n".join(kept)
