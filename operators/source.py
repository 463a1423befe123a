"""Look-ups over kernel modules that rewrites and crossover share: what is a kernel, where is it launched, with what."""

from __future__ import annotations

import ast
import dataclasses
import functools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import libcst as cst
import libcst.matchers as m

from evo.knobs import read_knobs
from evo.syntax import module_tree

MAX_CHARACTERS = 200_000
MAX_DEPTH = 150
"""Deeper trees exhaust the stacks of parsers and visitors; kernels stay below 40."""

CACHES = frozenset({"libentry"})
"""Decorators of other projects that keep binaries and launch kernels as written: FlagGems'."""
DECORATORS = frozenset({"triton.jit", "triton.autotune", "triton.heuristics"}) | CACHES

N = TypeVar("N", bound=cst.CSTNode)


class NotApplicableError(ValueError):
    """A rewrite does not apply; the text says why in one sentence."""


@dataclass(frozen=True)
class Kernel:
    """A `@triton.jit` function.

    Attributes:
        node, tree: The definition, to edit and to analyse.
        parameters: Names in order.
        constexprs: Those annotated `tl.constexpr`.
        decorated: It has decorators besides `triton.jit` (autotune, heuristics), so its launches do not show all arguments.
        wrapped: Some of them are not Triton's, so that nobody knows what a launch does.
    """

    node: cst.FunctionDef
    tree: ast.FunctionDef
    parameters: tuple[str, ...]
    constexprs: frozenset[str]
    decorated: bool
    wrapped: bool = False

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.node.name.value

    @property
    def uses(self) -> frozenset[str]:
        """Last names of all `tl` functions called."""
        return frozenset(called(node) for node in ast.walk(self.tree)) - {""}


@dataclass(frozen=True)
class Launch:
    """A call `kernel[grid](…)`.

    Attributes:
        call: The node.
        kernel: Name of the kernel.
        function: The function it stands in.
        arguments: Parameter or launch option → argument.
        unpacks: It also unpacks a dictionary, which can hold nothing but launch options: every parameter is given.
    """

    call: cst.Call
    kernel: str
    function: cst.FunctionDef
    arguments: Mapping[str, cst.Arg]
    unpacks: bool = False

    def text(self, parameter: str) -> str:
        """Source of an argument.

        Raises:
            NotApplicableError: The launch does not show it.
        """
        if parameter not in self.arguments:
            raise NotApplicableError(f"the launch of {self.kernel} does not give {parameter}")
        return code(self.arguments[parameter].value)


@dataclass(frozen=True)
class Source:
    """A parsed kernel module."""

    module: cst.Module
    kernels: Mapping[str, Kernel]
    launches: tuple[Launch, ...]

    @property
    def names(self) -> frozenset[str]:
        """Every identifier of the module."""
        return frozenset(node.value for node in find(self.module, cst.Name))

    def launches_of(self, kernel: Kernel) -> tuple[Launch, ...]:
        """All launches of a kernel whose arguments can be read.

        Raises:
            NotApplicableError: There is none, another launch passes `**arguments`, or decorators are not Triton's. Arguments that an
                autotuner chooses are not among those of a launch.
        """
        found = tuple(launch for launch in self.launches if launch.kernel == kernel.name)
        every = find(self.module, cst.Subscript, m.Subscript(value=m.Name(kernel.name)))
        if kernel.wrapped:
            raise NotApplicableError(f"{kernel.name} has a decorator that is not Triton's")
        if not found or len(every) != len(found):
            raise NotApplicableError(f"{kernel.name} has no launch here, or one that unpacks arguments")
        return found


def code(node: cst.CSTNode) -> str:
    """Source text of a node."""
    return cst.Module(body=[]).code_for_node(node)


def called(node: ast.AST) -> str:
    """`load` for a call of `tl.load`, `exp` for `tl.exp` and `tl.math.exp`; empty for anything else."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return ""
    root: ast.expr = node.func
    while isinstance(root, ast.Attribute):
        root = root.value
    return node.func.attr if isinstance(root, ast.Name) and root.id in ("tl", "libdevice") else ""


def find(root: cst.CSTNode, kind: type[N], pattern: m.BaseMatcherNode | None = None) -> list[N]:
    """Every node of a kind, the root included, that matches; outer ones first. libcst's own search rebuilds the tree."""
    found: list[N] = []
    stack: list[cst.CSTNode] = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, kind) and (pattern is None or m.matches(node, pattern)):
            found.append(node)
        stack += reversed(_children(node))
    return found


def _children(node: cst.CSTNode) -> list[cst.CSTNode]:
    values: list[object] = []
    for name in _fields(type(node)):
        value = getattr(node, name)
        values += value if isinstance(value, list | tuple) else [value]
    return [value for value in values if isinstance(value, cst.CSTNode)]


@functools.cache
def _fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    layout = (
        "whitespace",
        "comma",
        "lpar",
        "rpar",
        "leading_lines",
        "lines_after",
        "header",
        "footer",
        "semicolon",
        "trailing",
        "equal",
    )
    return tuple(item.name for item in dataclasses.fields(kind) if not item.name.startswith(layout))


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """Argument of a call by position or keyword."""
    if len(call.args) > position:
        return call.args[position]
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def read_source(text: str) -> Source:
    """Parses a kernel module and finds its kernels and launches.

    Raises:
        NotApplicableError: It does not parse, is too large or deep, declares malformed knobs, or lacks the usual imports.
    """
    module = parse(text)
    imports = {code(node).strip() for node in find(module, cst.Import)}
    if "import triton" not in imports or "import triton.language as tl" not in imports:
        raise NotApplicableError("the module does not import triton, and triton.language as tl")
    kernels = {kernel.name: kernel for kernel in map(_kernel, _functions(module)) if kernel is not None}
    launches: dict[int, Launch] = {}
    for function in _functions(module):  # outer functions first, so that a launch belongs to the innermost one
        if function.name.value not in kernels:
            for call in find(function, cst.Call, m.Call(func=m.Subscript(value=m.Name()))):
                launch = _launch(call, function, kernels)
                if launch is not None:
                    launches[id(call)] = launch
    return Source(module, kernels, tuple(launches.values()))


def parse(text: str) -> cst.Module:
    """Parses module source within limits of size and depth; raises NotApplicableError otherwise."""
    check(text)
    try:
        return cst.parse_module(text)
    except (ValueError, RecursionError, MemoryError, cst.ParserSyntaxError) as error:
        raise NotApplicableError("the module cannot be read with its layout") from error


def check(text: str) -> None:
    """Raises NotApplicableError where source does not parse, is too large or deep, or declares malformed knobs."""
    if len(text) > MAX_CHARACTERS:
        raise NotApplicableError(f"the module has {len(text)} characters, more than {MAX_CHARACTERS}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            deep = _depth(module_tree(text)) > MAX_DEPTH
            read_knobs(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotApplicableError(f"the module cannot be read: {(str(error) or repr(error)).splitlines()[0]}") from error
    if deep:
        raise NotApplicableError(f"the module is nested deeper than {MAX_DEPTH} levels")


def _depth(tree: ast.AST) -> int:
    depth, layer = 0, [tree]
    while layer and depth <= MAX_DEPTH:
        depth, layer = depth + 1, [child for node in layer for child in ast.iter_child_nodes(node)]
    return depth


def _functions(module: cst.Module) -> list[cst.FunctionDef]:
    return find(module, cst.FunctionDef)


def _kernel(node: cst.FunctionDef) -> Kernel | None:
    decorators = [code(item.decorator) for item in node.decorators]
    if not any(text.split("(")[0] == "triton.jit" for text in decorators):
        return None
    tree = module_tree(code(node.with_changes(decorators=[], leading_lines=[], lines_after_decorators=[]))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    arguments = tree.args.posonlyargs + tree.args.args
    constexprs = frozenset(a.arg for a in arguments if a.annotation is not None and "constexpr" in ast.unparse(a.annotation))
    names = [text.split("(")[0] for text in decorators]
    wrapped = not DECORATORS.issuperset(names)
    decorated = sum(name not in CACHES for name in names) > 1
    return Kernel(node, tree, tuple(a.arg for a in arguments), constexprs, decorated, wrapped)


def _launch(call: cst.Call, function: cst.FunctionDef, kernels: Mapping[str, Kernel]) -> Launch | None:
    name = cst.ensure_type(cst.ensure_type(call.func, cst.Subscript).value, cst.Name).value
    kernel = kernels.get(name)
    if kernel is None or any(argument.star == "*" for argument in call.args):
        return None
    arguments: dict[str, cst.Arg] = {}
    unpacks = False
    for position, item in enumerate(call.args):
        if item.star:
            if any("CONFIG" in code(node) for node in [item.value, *assigned(function, code(item.value))]):
                return None  # new knobs would be passed twice
            unpacks = True
        elif item.keyword is not None:
            arguments[item.keyword.value] = item
        elif position < len(kernel.parameters):
            arguments[kernel.parameters[position]] = item
    if unpacks and not set(kernel.parameters) <= set(arguments):
        return None
    return Launch(call, name, function, arguments, unpacks)


def assigned(function: cst.CSTNode, name: str) -> list[cst.CSTNode]:
    """All expressions assigned to a name."""
    plain = m.Assign(targets=[m.AssignTarget(m.Name(name))])
    annotated = find(function, cst.AnnAssign, m.AnnAssign(target=m.Name(name)))
    return [
        *(node.value for node in find(function, cst.Assign, plain)),
        *(node.value for node in annotated if node.value is not None),
    ]


def grid(launch: Launch) -> list[cst.CSTNode]:
    """The nodes that hold the grid: what stands in the brackets and, where that is a name, what is assigned to it."""
    index = cst.ensure_type(launch.call.func, cst.Subscript)
    inside = [element.slice for element in index.slice]
    name = inside[0].value if len(inside) == 1 and isinstance(inside[0], cst.Index) else None
    return [*inside, *(assigned(launch.function, name.value) if isinstance(name, cst.Name) else [])]


def knob_names(module: cst.Module) -> frozenset[str]:
    """Every knob the module declares."""
    return frozenset(read_knobs(module.code).default)
