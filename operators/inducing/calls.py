"""Writes the calls of a generated module as a plain wrapper: allocations, views, launches and operators of torch."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from evo.syntax import expression_tree, module_tree
from operators.inducing.functions import renamed
from operators.source import NotApplicableError

_DROPPED = (
    "args.clear", "assert_size_stride", "assert_alignment", "torch.cuda.set_device", "torch.cuda._DeviceGuard", "run_intermediate_hooks",
    "start_graph", "end_graph",
)  # fmt: skip
_EMPTY = re.compile(r"empty_strided_(cuda|cpu|xpu|cpu_pinned)|empty_strided")


@dataclass
class Wrapper:
    """The body of a wrapper.

    Attributes:
        lines: Statements.
        results: What it returns, an expression per tensor.
        operators: Of torch that it calls, as ``aten.mm``.
        symbols: Sizes that it reads.
    """

    lines: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    operators: set[str] = field(default_factory=set)

    def names(self) -> set[str]:
        """All that it reads."""
        trees = [module_tree(text) for text in (*self.lines, *self.results)]
        return {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}


def write_wrapper(
    body: Sequence[ast.stmt],
    arguments: Sequence[str],
    symbols: Mapping[str, str],
    launch: Callable[[str, list[str]], str],
) -> Wrapper:
    """Rewrites the statements of `call`.

    Args:
        body: Of the generated function.
        arguments: Our names of its arguments, in order.
        symbols: Its names of sizes → ours.
        launch: Given a kernel and the expressions it is run with, the statement that launches it.

    Raises:
        NotApplicableError: It does what has no place in a wrapper.
    """
    wrapper = Wrapper()
    names: dict[str, str] = dict(symbols)
    device = f"{arguments[0]}.device" if arguments else '"cuda"'
    rewriting = _Expressions(wrapper.operators, device)
    for written in body:
        node: ast.AST = written
        if isinstance(node, ast.Assign) and ast.unparse(node.value) == "args":
            target = node.targets[0]
            given = (
                [ast.unparse(item) for item in target.elts] if isinstance(target, ast.Tuple | ast.List) else [ast.unparse(target)]
            )
            names |= dict(zip(given, arguments, strict=True))
            continue
        if _is_dropped(written, symbols):
            continue
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and isinstance(node.targets[0], ast.Name):
            names[node.targets[0].id] = names.get(node.value.id, node.value.id)  # a second name for a buffer
            continue
        node = renamed(node, names)
        run = _run(node)
        if run is not None:
            wrapper.lines.append(launch(run[0], [ast.unparse(rewriting.visit(item)) for item in run[1]]))
        elif isinstance(node, ast.Return):
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value] if node.value is not None else []
            wrapper.results = [ast.unparse(rewriting.visit(item)) for item in values if item is not None]
        elif isinstance(node, ast.Assign | ast.Expr | ast.AugAssign):
            wrapper.lines.append(ast.unparse(ast.fix_missing_locations(rewriting.visit(node))))
        else:
            raise NotApplicableError(f"Inductor's wrapper has a statement that is not known: {ast.unparse(node)[:80]}")
    return wrapper


def _is_dropped(node: ast.stmt, symbols: Mapping[str, str]) -> bool:
    if isinstance(node, ast.Delete | ast.Pass | ast.Assert):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) or (
            isinstance(node.value, ast.Call) and ast.unparse(node.value.func).startswith(_DROPPED)
        )
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
        return False
    target, value = node.targets[0].id, ast.unparse(node.value)
    copied = value.startswith("copy_if_misaligned(") or "get_raw_stream(" in value
    return copied or target in symbols or re.fullmatch(r"\w+\.(size|stride)\(\)", value) is not None


def _run(node: ast.AST) -> tuple[str, list[ast.expr]] | None:
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "run":
        return ast.unparse(call.func.value), list(call.args)
    return None


class _Expressions(ast.NodeTransformer):
    def __init__(self, operators: set[str], device: str) -> None:
        self._operators = operators
        self._device = device

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = ast.unparse(node.func)
        if name == "reinterpret_tensor":
            return self._view(node)
        if _EMPTY.fullmatch(name):
            return _expression(self._allocation([ast.unparse(item) for item in node.args[:3]]))
        if name == "device":
            return _expression(self._device)
        if name.startswith("extern_kernels."):
            operator = name.partition(".")[2].removesuffix("_out")
            self._operators.add(f"aten.{operator}")
            form = f"torch.{operator}" if any(item.arg == "out" for item in node.keywords) else f"torch.ops.aten.{operator}"
            return ast.Call(_expression(form), node.args, node.keywords)
        found = re.match(r"(?:torch\.ops\.)?(aten|prims|inductor)\.(\w+)", name)
        if found:
            self._operators.add(f"{found[1]}.{found[2]}")
        return node

    def _allocation(self, parts: list[str]) -> str:
        size, stride, dtype = parts
        if _is_contiguous(size, stride):
            return f"torch.empty({size}, dtype={dtype}, device={self._device})"
        return f"torch.empty_strided({size}, {stride}, dtype={dtype}, device={self._device})"

    @staticmethod
    def _view(node: ast.Call) -> ast.expr:
        tensor, size, stride = (ast.unparse(item) for item in node.args[:3])
        offset = ast.unparse(node.args[3]) if len(node.args) > 3 else "0"
        moved = f", {tensor}.storage_offset() + {offset}" if offset != "0" else ""
        return _expression(f"{tensor}.as_strided({size}, {stride}{moved})")


def _is_contiguous(size: str, stride: str) -> bool:
    """Whether strides are those of a contiguous tensor, tried with a number for each name."""
    names = sorted(
        {node.id for node in ast.walk(module_tree(f"({size}, {stride})")) if isinstance(node, ast.Name)} - {"max", "min"}
    )
    values = {name: 7 + 4 * place for place, name in enumerate(names)}
    try:
        sizes, strides = eval(f"({size}, {stride})", {"__builtins__": {}, "max": max, "min": min}, values)
    except (NameError, TypeError, AttributeError, ZeroDivisionError):
        return False
    step, wanted = 1, []
    for item in reversed(sizes):
        wanted.append(step)
        step *= item
    return tuple(reversed(wanted)) == tuple(strides)


def _expression(text: str) -> ast.expr:
    return expression_tree(text)
