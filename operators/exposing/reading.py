"""Reads kernels and their launches from any module with Triton in it, however it spells its imports; keeps places in the text."""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from operators.source import NotApplicableError

Function = ast.FunctionDef | ast.AsyncFunctionDef
PLAIN_DECORATORS = ("jit", "autotune", "heuristics")


@dataclass(frozen=True)
class KernelText:
    """A kernel.

    Attributes:
        node: The definition as it stands.
        tree: The same with `tl` for whatever the module calls `triton.language`, as the readers of kernels expect.
        parameters, constexprs: Names; those annotated `tl.constexpr`.
        defaults: Parameter → default in the signature.
        autotuners, heuristics: Decorators that choose arguments.
        foreign: Decorators of other libraries, which may do anything with arguments.
    """

    node: Function
    tree: ast.FunctionDef
    parameters: tuple[str, ...]
    constexprs: frozenset[str]
    defaults: Mapping[str, ast.expr]
    autotuners: tuple[ast.Call, ...]
    heuristics: tuple[ast.Call, ...]
    foreign: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.node.name

    @property
    def dots(self) -> bool:
        """It multiplies matrices."""
        return any(isinstance(node, ast.Attribute) and node.attr.startswith("dot") for node in ast.walk(self.tree))

    @property
    def loops(self) -> bool:
        """It has a loop, which stages can pipeline."""
        return any(isinstance(node, ast.For | ast.While) for node in ast.walk(self.tree))

    @property
    def computed(self) -> Mapping[str, ast.expr]:
        """What `@triton.heuristics` computes: parameter or launch option → function."""
        found: dict[str, ast.expr] = {}
        for call in self.heuristics:
            table = next(iter(call.args), None) or next((k.value for k in call.keywords if k.arg == "values"), None)
            if isinstance(table, ast.Dict):
                pairs = zip(table.keys, table.values, strict=True)
                found |= {
                    key.value: value for key, value in pairs if isinstance(key, ast.Constant) and isinstance(key.value, str)
                }
        return found


@dataclass(frozen=True)
class LaunchText:
    """A call `kernel[grid](…)`, in one step or through a variable that holds `kernel[grid]`.

    Attributes:
        call: The call with the arguments.
        index: `kernel[grid]`.
        kernel: What is launched.
        scopes: The functions it stands in, innermost first.
        given: Parameter or launch option → value, those in a dict literal that is passed as `**meta` included.
        positional: Names in `given` that stand by position.
        opaque: It passes `**kwargs` that cannot be read.
        stretched: It passes `*args`, so that parameters may be given by position that `given` lacks.
    """

    call: ast.Call
    index: ast.Subscript
    kernel: KernelText
    scopes: tuple[Function, ...]
    given: Mapping[str, ast.expr]
    positional: frozenset[str]
    opaque: bool
    stretched: bool


@dataclass
class ModuleText:
    """A parsed module with the places of its nodes."""

    text: str
    tree: ast.Module
    kernels: dict[str, KernelText] = field(default_factory=dict)
    launches: list[LaunchText] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.data = self.text.encode()
        self._starts = [0]
        for line in self.data.replace(b"\r\n", b" \n").replace(b"\r", b"\n").split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    def span(self, node: ast.AST) -> tuple[int, int]:
        """First byte and the one behind the last."""
        line, end = getattr(node, "lineno"), getattr(node, "end_lineno")  # noqa: B009 - not every node has them
        first, last = getattr(node, "col_offset"), getattr(node, "end_col_offset")  # noqa: B009
        return self._starts[line - 1] + first, self._starts[end - 1] + last

    def line_start(self, line: int) -> int:
        """First byte of a line, counted from 1."""
        return self._starts[min(line - 1, len(self._starts) - 1)]

    def of(self, node: ast.AST) -> str:
        """Source of a node."""
        first, last = self.span(node)
        return self.data[first:last].decode()

    def launches_of(self, kernel: KernelText) -> list[LaunchText]:
        """Every launch of a kernel."""
        return [launch for launch in self.launches if launch.kernel is kernel]


def read_module(text: str, tree: ast.Module) -> ModuleText:
    """Finds the kernels of a module and their launches.

    Raises:
        NotApplicableError: It has no kernel.
    """
    names = _imported(tree)
    module = ModuleText(text, tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            kernel = _kernel(node, names)
            if kernel is not None:
                module.kernels[kernel.name] = kernel
    if not module.kernels:
        raise NotApplicableError("the module has no @triton.jit function")
    module.launches.extend(_launches(tree.body, (), module))
    return module


def _imported(tree: ast.Module) -> Mapping[str, str]:
    """Name in the module → what of Triton it stands for: ``triton``, ``triton.language``, ``triton.jit`` …"""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "triton":
                    found[alias.asname or "triton"] = alias.name if alias.asname else "triton"
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "triton" and node.level == 0:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def _meant(node: ast.expr, names: Mapping[str, str]) -> str:
    """`triton.jit` for whatever spelling of it."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    root = names.get(node.id, node.id) if isinstance(node, ast.Name) else "?"
    return ".".join([root, *reversed(parts)])


def _kernel(node: ast.FunctionDef, names: Mapping[str, str]) -> KernelText | None:
    kinds: dict[str, list[ast.expr]] = {}
    foreign = []
    for item in node.decorator_list:
        meant = _meant(item.func if isinstance(item, ast.Call) else item, names)
        kind = meant.rpartition(".")[2]
        if meant.startswith("triton.") and kind in PLAIN_DECORATORS:
            kinds.setdefault(kind, []).append(item)
        else:
            foreign.append(meant)
    if "jit" not in kinds:
        return None
    arguments = [*node.args.posonlyargs, *node.args.args]
    plain = arguments[len(arguments) - len(node.args.defaults) :]
    defaults = {item.arg: value for item, value in zip(plain, node.args.defaults, strict=True)}
    keywords = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    defaults |= {item.arg: value for item, value in keywords if value is not None}
    arguments += node.args.kwonlyargs
    constexprs = frozenset(a.arg for a in arguments if a.annotation is not None and "constexpr" in ast.unparse(a.annotation))
    calls = {kind: tuple(item for item in kinds.get(kind, []) if isinstance(item, ast.Call)) for kind in PLAIN_DECORATORS}
    return KernelText(
        node,
        _with_usual_names(node, names),
        tuple(item.arg for item in arguments),
        constexprs,
        defaults,
        calls["autotune"],
        calls["heuristics"],
        tuple(foreign),
    )


def _with_usual_names(node: ast.FunctionDef, names: Mapping[str, str]) -> ast.FunctionDef:
    others = {name for name, meant in names.items() if meant == "triton.language" and name != "tl"}
    if not others:
        return node
    tree = copy.deepcopy(node)
    for item in ast.walk(tree):
        if isinstance(item, ast.Name) and item.id in others:
            item.id = "tl"
    return tree


def _launches(body: list[ast.stmt], scopes: tuple[Function, ...], module: ModuleText) -> Iterator[LaunchText]:
    """Launches below some statements; those inside a function have it as their innermost scope."""
    stack: list[ast.AST] = list(reversed(body))
    kernels = {id(kernel.node) for kernel in module.kernels.values()}
    while stack:
        node = stack.pop()
        if isinstance(node, Function):
            if id(node) not in kernels:
                yield from _launches(node.body, (node, *scopes), module)
            continue
        if isinstance(node, ast.Call):
            launch = _launch(node, scopes, module)
            if launch is not None:
                yield launch
        stack += reversed(list(ast.iter_child_nodes(node)))


def _launch(call: ast.Call, scopes: tuple[Function, ...], module: ModuleText) -> LaunchText | None:
    index: ast.expr | None = call.func
    if isinstance(index, ast.Name) and index.id not in module.kernels:
        values = [value for scope in scopes[:1] for value in bindings(scope, index.id)]
        index = values[0] if len(values) == 1 else None
    if not isinstance(index, ast.Subscript) or not isinstance(index.value, ast.Name):
        return None
    kernel = module.kernels.get(index.value.id)
    if kernel is None:
        return None
    given: dict[str, ast.expr] = {}
    positional: set[str] = set()
    opaque = False
    stretched = any(isinstance(item, ast.Starred) for item in call.args)
    plain = itertools.takewhile(lambda item: not isinstance(item, ast.Starred), call.args)
    for name, item in zip(kernel.parameters, plain, strict=False):
        given[name] = item
        positional.add(name)
    for keyword in call.keywords:
        if keyword.arg is not None:
            given[keyword.arg] = keyword.value
            continue
        table = _table(keyword.value, scopes)
        opaque = opaque or table is None
        given |= table or {}
    return LaunchText(call, index, kernel, scopes, given, frozenset(positional), opaque, stretched)


def _table(node: ast.expr, scopes: tuple[Function, ...]) -> dict[str, ast.expr] | None:
    """What a `**meta` passes, where that is a dict that is written down and not changed."""
    if isinstance(node, ast.Name) and scopes:
        values = bindings(scopes[0], node.id)
        changed = any(
            isinstance(item, ast.Subscript | ast.Attribute)
            and isinstance(item.value, ast.Name)
            and item.value.id == node.id
            and (not isinstance(item, ast.Subscript) or not isinstance(item.ctx, ast.Load))
            for item in ast.walk(scopes[0])
        )
        if len(values) != 1 or values[0] is None or changed:
            return None
        node = values[0]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict" and not node.args:
        pairs = [(keyword.arg, keyword.value) for keyword in node.keywords]
    elif isinstance(node, ast.Dict):
        keys = [key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None for key in node.keys]
        pairs = list(zip(keys, node.values, strict=True))
    else:
        return None
    return None if any(key is None for key, _ in pairs) else {str(key): value for key, value in pairs}


def bindings(scope: Function | ast.Module, name: str) -> list[ast.expr | None]:
    """Everything a name is bound to in a scope, but for its parameters; None where it is no expression of its own."""
    found: list[ast.expr | None] = []
    for node in own_nodes(scope):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                found += _bound(target, node.value, name)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and isinstance(node.target, ast.Name) and node.target.id == name:
            found += [node.value] if node.value is not None else []
        elif isinstance(node, ast.AugAssign | ast.For | ast.comprehension):
            found += [None for item in ast.walk(node.target) if isinstance(item, ast.Name) and item.id == name]
        elif isinstance(node, ast.Global | ast.Nonlocal) and name in node.names:
            found.append(None)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            found += [None for item in ast.walk(node.optional_vars) if isinstance(item, ast.Name) and item.id == name]
    return found


def _bound(target: ast.expr, value: ast.expr, name: str) -> list[ast.expr | None]:
    if isinstance(target, ast.Name):
        return [value] if target.id == name else []
    if isinstance(target, ast.Tuple | ast.List):
        values: list[ast.expr] = []
        if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
            values = value.elts
        names = [item for item in ast.walk(target) if isinstance(item, ast.Name) and item.id == name]
        if names and not values:
            return [None]
        return [found for one, other in zip(target.elts, values, strict=False) for found in _bound(one, other, name)]
    return []


def own_nodes(scope: Function | ast.Module) -> Iterator[ast.AST]:
    """The nodes of a scope without those of functions defined in it."""
    stack: list[ast.AST] = list(reversed(scope.body))
    while stack:
        node = stack.pop()
        if isinstance(node, Function | ast.Lambda):
            continue
        yield node
        if not isinstance(scope, ast.Module) or not isinstance(node, ast.ClassDef):
            stack += reversed(list(ast.iter_child_nodes(node)))


def parameter_of(scope: Function, name: str) -> bool:
    """Whether a function has such a parameter."""
    arguments = scope.args
    return any(item.arg == name for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))


def reads_config(node: ast.AST, scopes: tuple[Function, ...], depth: int = 3) -> bool:
    """Whether an expression is made from `CONFIG`, be it through names of the functions it stands in: then it is a knob already."""
    names = {item.id for item in ast.walk(node) if isinstance(item, ast.Name)}
    if "CONFIG" in names:
        return True
    values = [value for scope in scopes for name in names for value in bindings(scope, name) if depth and value is not None]
    return any(reads_config(value, scopes, depth - 1) for value in values)
