"""Reads the configurations of an autotuned kernel from its module's text, without running it.

Authors write them as a list, a comprehension, or a function without arguments that builds one with loops; a small evaluator of
just those forms follows them. Anything else is not read: running a foreign module is the sandbox's business.
"""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evo.records import KnobValue
from operators.source import NotApplicableError

MAX_STEPS = 20_000
MAX_CONFIGURATIONS = 4096
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
TRITON_DEFAULTS: Mapping[str, KnobValue] = {
    "num_warps": 4, "num_stages": 3, "num_ctas": 1, "maxnreg": 0, "waves_per_eu": 0, "matrix_instr_nonkdim": 0, "kpack": 1,
}  # fmt: skip
"""What Triton takes where a configuration does not say; 0 for a `maxnreg` of None (see `read_of`)."""
_DRIVER = "triton.runtime.driver.active.get_current_target().backend"
HOOKED = ("pre_hook", "ir_override")
_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip


@dataclass(frozen=True)
class ConfigurationList:
    """What an autotuner chooses from: every configuration assigns every key."""

    all: tuple[Mapping[str, KnobValue], ...]

    @property
    def first(self) -> Mapping[str, KnobValue]:
        """The author's first one."""
        return self.all[0]

    @property
    def keys(self) -> tuple[str, ...]:
        """Parameters and launch options that are assigned, in the author's order."""
        return tuple(self.first)

    def values(self, key: str) -> list[KnobValue]:
        """Distinct values of a key, in the author's order."""
        return list(dict.fromkeys(item[key] for item in self.all))


def read_configurations(tree: ast.Module, decorator: ast.Call, backend: str = "") -> ConfigurationList:
    """The configurations of a `@triton.autotune(…)` call.

    Args:
        tree: The module.
        decorator: The call.
        backend: What configurations that ask the driver are read for, ``cuda`` or ``hip``; empty where that is not known.

    Pruning is left out: it drops configurations that are slow or do not fit, which tuning finds for itself.

    Raises:
        NotApplicableError: They are computed in a way that only running the module could tell, have hooks, are changed by the code that
            prunes them, or assign different keys.
    """
    keywords = {item.arg: item.value for item in decorator.keywords}
    if "prune_configs_by" in keywords and not _only_prunes(tree, keywords["prune_configs_by"]):
        raise NotApplicableError("the code that prunes the autotuner's configurations may change them")
    given = keywords.get("configs") or next(iter(decorator.args), None)
    if given is None:
        raise NotApplicableError("the autotuner has no configurations")
    try:
        found = _Evaluator(tree, backend).value(given, {})
    except RecursionError as error:
        raise NotApplicableError("the autotuner's configurations are nested too deep") from error
    if not isinstance(found, list) or not found or not all(isinstance(item, _Config) for item in found):
        raise NotApplicableError("the autotuner's configurations are no list of triton.Config")
    if len(found) > MAX_CONFIGURATIONS:
        raise NotApplicableError(f"the autotuner has {len(found)} configurations, more than {MAX_CONFIGURATIONS}")
    used = [option for option in TRITON_DEFAULTS if any(option in item.values for item in found)]
    whole = tuple({**item.values, **{key: item.values.get(key, TRITON_DEFAULTS[key]) for key in used}} for item in found)
    if any(set(item) != set(whole[0]) for item in whole):
        raise NotApplicableError("the autotuner's configurations assign different parameters")
    return ConfigurationList(tuple({key: item[key] for key in whole[0]} for item in whole))


def read_of(knob: str, option: str, values: Sequence[KnobValue]) -> str:
    """How a launch reads a knob that stands for an option with such values."""
    return f'CONFIG["{knob}"] or None' if option == "maxnreg" and 0 in values else f'CONFIG["{knob}"]'


def _only_prunes(tree: ast.Module, given: ast.expr) -> bool:
    """Whether pruning is done by functions that can be read and that make or change no configuration.

    Functions of other modules are believed to prune only: Triton's own do.
    """
    if not isinstance(given, ast.Dict):
        return False
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    roots: list[ast.AST] = [functions.get(node.id, node) for node in given.values if isinstance(node, ast.Name)]
    roots += [node for node in given.values if isinstance(node, ast.Lambda | ast.Constant)]
    return len(roots) == len(given.values) and not any(_changes(node) for root in roots for node in ast.walk(root))


def _changes(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return any(isinstance(item, ast.Attribute) and item.attr in ("kwargs", *OPTIONS) for item in ast.walk(node))
    name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    return name in ("setattr", "triton.Config", "Config") or name.endswith(
        (".kwargs.update", ".kwargs.setdefault", ".kwargs.pop")
    )


@dataclass(frozen=True)
class _Config:
    values: Mapping[str, KnobValue]


class _Returned(Exception):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class _Evaluator:
    """Evaluates the few forms that build lists of configurations; anything else raises NotApplicableError."""

    def __init__(self, tree: ast.Module, backend: str) -> None:
        self._facts: Mapping[str, Any] = {_DRIVER: backend} if backend else {}
        self._functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self._constants: dict[str, ast.expr] = {}
        for node in tree.body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                self._constants[node.targets[0].id] = node.value
        self._steps = itertools.count()

    def value(self, node: ast.expr, names: dict[str, Any]) -> Any:
        """The value of an expression."""
        self._count()
        if isinstance(node, ast.Attribute) and ast.unparse(node) in self._facts:
            return self._facts[ast.unparse(node)]
        match node:
            case ast.Constant(value=int() | float() | str() | bool() | None):
                return node.value
            case ast.List() | ast.Tuple():
                return [found for item in node.elts for found in self._elements(item, names)]
            case ast.Dict() if all(key is not None for key in node.keys):
                pairs = zip(node.keys, node.values, strict=True)
                return {self.value(key, names): self.value(item, names) for key, item in pairs if key is not None}
            case ast.Name():
                return self._name(node.id, names)
            case ast.ListComp():
                return [self.value(node.elt, inner) for inner in self._loops(node.generators, names)]
            case ast.BinOp() if type(node.op) in _BINARY:
                return self._computed(_BINARY[type(node.op)], self.value(node.left, names), self.value(node.right, names))
            case ast.UnaryOp(op=ast.Not()):
                return not self.value(node.operand, names)
            case ast.UnaryOp(op=ast.USub()):
                return self._computed(operator.neg, self.value(node.operand, names))
            case ast.IfExp():
                return self.value(node.body if self.value(node.test, names) else node.orelse, names)
            case ast.BoolOp():
                values = (self.value(item, names) for item in node.values)
                return all(values) if isinstance(node.op, ast.And) else any(values)
            case ast.Compare(ops=[op], comparators=[right]) if type(op) in _COMPARE:
                return self._computed(_COMPARE[type(op)], self.value(node.left, names), self.value(right, names))
            case ast.Call():
                return self._call(node, names)
        raise _unread(node)

    def _elements(self, node: ast.expr, names: dict[str, Any]) -> list[Any]:
        return self._iterated(node.value, names) if isinstance(node, ast.Starred) else [self.value(node, names)]

    def _name(self, name: str, names: dict[str, Any]) -> Any:
        if name in names:
            return names[name]
        if name in self._constants:
            return self.value(self._constants[name], {})
        raise NotApplicableError(f"the autotuner's configurations depend on {name}")

    def _loops(self, generators: list[ast.comprehension], names: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if not generators:
            yield names
            return
        first = generators[0]
        for item in self._iterated(first.iter, names):
            inner = {**names, **_bound(first.target, item)}
            if all(self.value(test, inner) for test in first.ifs):
                yield from self._loops(generators[1:], inner)

    def _iterated(self, node: ast.expr, names: dict[str, Any]) -> list[Any]:
        found = self.value(node, names)
        if not isinstance(found, list):
            raise _unread(node)
        return found

    def _call(self, node: ast.Call, names: dict[str, Any]) -> Any:
        name = ast.unparse(node.func)
        if name in ("triton.Config", "Config"):
            return self._config(node, names)
        if name == "range" and not node.keywords:
            return list(self._computed(range, *(self.value(item, names) for item in node.args))[:MAX_STEPS])
        if name in ("list", "tuple") and len(node.args) == 1:
            return self._iterated(node.args[0], names)
        function = self._functions.get(name)
        if function is None or node.args or node.keywords or function.decorator_list:
            raise NotApplicableError(f"the autotuner's configurations come from {name}(…)")
        try:
            self._run(function.body, {})
        except _Returned as returned:
            return returned.value
        return None

    def _config(self, node: ast.Call, names: dict[str, Any]) -> _Config:
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        hook = next((name for name in HOOKED if name in given and ast.unparse(given[name]) != "None"), None)
        if hook is not None:
            raise NotApplicableError(f"a configuration has a {hook}")
        first = node.args[0] if node.args else given.get("kwargs")
        values = {} if first is None else self.value(first, names)
        if not isinstance(values, dict) or len(node.args) > 1:
            raise _unread(node)
        options = {key: self.value(given[key], names) for key in OPTIONS if key in given}
        found = {str(key): item for key, item in {**values, **options}.items() if item is not None}
        if not all(isinstance(item, int | float | str | bool) for item in found.values()):
            raise _unread(node)
        return _Config(found)

    def _run(self, body: list[ast.stmt], names: dict[str, Any]) -> None:
        for node in body:
            self._count()
            match node:
                case ast.Assign(targets=[ast.Name(id=name)]):
                    names[name] = self.value(node.value, names)
                case ast.Return():
                    raise _Returned(None if node.value is None else self.value(node.value, names))
                case ast.For(orelse=[]):
                    for item in self._iterated(node.iter, names):
                        names.update(_bound(node.target, item))
                        self._run(node.body, names)
                case ast.If():
                    self._run(node.body if self.value(node.test, names) else node.orelse, names)
                case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[item])):
                    self._appended(names.get(name), self.value(item, names))
                case ast.Expr(value=ast.Constant()) | ast.Pass():
                    continue
                case _:
                    raise _unread(node)

    @staticmethod
    def _appended(found: Any, item: Any) -> None:
        if not isinstance(found, list):
            raise NotApplicableError("the autotuner's configurations are appended to what is no list")
        found.append(item)

    @staticmethod
    def _computed(function: Callable[..., Any], *arguments: Any) -> Any:
        equality = function in (operator.eq, operator.ne) and all(isinstance(item, str) for item in arguments)
        if not equality and not all(isinstance(item, int | float | list) for item in arguments):
            raise NotApplicableError("the autotuner's configurations are computed from more than numbers")
        if function is operator.mul and any(isinstance(item, list) for item in arguments):
            raise NotApplicableError("the autotuner's configurations repeat a list")
        try:
            found = function(*arguments)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise NotApplicableError(f"the autotuner's configurations cannot be computed: {error}") from error
        if isinstance(found, int) and abs(found) >= 2**63:
            raise NotApplicableError("the autotuner's configurations hold a number beyond 64 bits")
        return found

    def _count(self) -> None:
        if next(self._steps) > MAX_STEPS:
            raise NotApplicableError("the autotuner's configurations take too long to compute")


def _bound(target: ast.expr, item: Any) -> dict[str, Any]:
    if isinstance(target, ast.Name):
        return {target.id: item}
    if isinstance(target, ast.Tuple) and isinstance(item, list) and len(item) == len(target.elts):
        pairs = zip(target.elts, item, strict=True)
        return {name.id: value for name, value in pairs if isinstance(name, ast.Name)}
    raise _unread(target)


def _unread(node: ast.AST) -> NotApplicableError:
    text = " ".join(ast.unparse(node).split())  # a reason is one line, however the module is laid out
    return NotApplicableError(f"the autotuner's configurations are not read from `{text[:60]}`")
