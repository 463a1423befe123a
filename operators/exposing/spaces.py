"""Which values a knob may take: powers of two within what the cases' sizes and the registers of a block allow."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from evo.records import KnobValue
from operators.exposing.reading import Function, KernelText, LaunchText, ModuleText, bindings
from operators.exposing.values import number
from operators.rewrite.sizes import LARGEST_DOT_TILE, LARGEST_TILE, SMALLEST_TILE

BYTES_PER_THREAD = 2047
"""A tensor of more than this cannot be held: 255 registers of 4 bytes, twice; see `evo.tracing.compiler`."""
LARGEST_BLOCK = 32 * 32
"""Threads of a block at most."""
RULED_TOP = 4096
"""Largest choice for a tile that follows a rule of the author's and is not of a matrix product."""


class CaseLike(Protocol):
    """What is asked of a case: its positional arguments, of which tensors have a `shape`."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Positional arguments of the entry."""


def tile_choices(default: int, *, dots: bool) -> tuple[int, ...]:
    """Powers of two around a tile size; for a rule of the author's (0) those that any device can run."""
    if default == 0:
        top = LARGEST_DOT_TILE if dots else RULED_TOP
        return (0, *(1 << power for power in range(4, top.bit_length())))
    top = LARGEST_DOT_TILE if dots else LARGEST_TILE
    around = (default // 4, default // 2, default, default * 2, default * 4)
    return tuple(size for size in around if size == default or SMALLEST_TILE <= size <= top)


def bounded(
    space: Mapping[str, Sequence[KnobValue]],
    cases: Iterable[CaseLike] | None,
    *,
    keep: Mapping[str, KnobValue],
    extents: Mapping[str, int] | None = None,
    products: Sequence[Sequence[str]] = (),
) -> dict[str, tuple[KnobValue, ...]]:
    """A space without what can never pay or run.

    Args:
        space: Knob → choices. Knobs of `extents` are tiles, and those whose names start with ``num_warps`` are warps.
        cases: What is tuned on, where that is known.
        keep: Values that stay whatever the bounds say: the defaults.
        extents: Tile → largest size of the dimension it tiles, 0 where only the cases can tell.
        products: Tiles that together make one tensor of 4-byte elements, such as an accumulator.

    Returns:
        The tiles at most twice the next power of two of what they tile, each of a size that some choice of the others leaves room
        for in a block's registers, and no more warps than the largest tile has elements for.

    Raises:
        ValueError: A knob has no choices, or not its default among them.
    """
    for name, choices in space.items():
        if not choices or (name in keep and keep[name] not in choices):
            raise ValueError(f"knob {name} {'lacks its default among its choices' if choices else 'has no choices'}")
    extents = dict(extents or {})
    largest = largest_size(cases) if cases is not None else 0
    found = {name: tuple(choices) for name, choices in space.items()}
    for name, extent in extents.items():
        top = 2 * _power_above(extent or largest) if extent or largest else 0
        if top:
            found[name] = _kept(found[name], keep.get(name), lambda value, top=top: value <= top)
    for product in products:
        smallest = {
            name: min((v for v in found[name] if isinstance(v, int) and v), default=1) for name in product if name in found
        }
        for name in smallest:
            others = math.prod(value for other, value in smallest.items() if other != name)
            room = BYTES_PER_THREAD * LARGEST_BLOCK // (4 * others)
            found[name] = _kept(found[name], keep.get(name), lambda value, room=room: value <= room)
    return found


def fewer_warps(choices: Sequence[KnobValue], elements: int, default: KnobValue) -> tuple[KnobValue, ...]:
    """Warp counts that leave each thread an element of the largest tile."""
    return _kept(tuple(choices), default, lambda value: value * 32 <= max(elements, 32))


def _kept(choices: Sequence[KnobValue], default: object, fits: Any) -> tuple[KnobValue, ...]:
    return tuple(value for value in choices if value in (0, default) or not isinstance(value, int) or fits(value))


def _power_above(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


def largest_size(cases: Iterable[CaseLike]) -> int:
    """The largest number of elements, or plain number, among the arguments."""
    sizes = [1]
    for case in cases:
        for item in case.arguments:
            shape = getattr(item, "shape", None)
            sizes.append(math.prod(shape) if shape is not None else item if type(item) is int else 1)
    return max(sizes)


def accumulators(kernel: KernelText) -> list[tuple[str, ...]]:
    """Parameters that together span a tensor made by `tl.zeros` or `tl.full`."""
    found = []
    for node in ast.walk(kernel.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("zeros", "full"):
            shape = node.args[0] if node.args else None
            if isinstance(shape, ast.Tuple | ast.List) and "float32" in ast.unparse(node):
                names = [item.id for item in shape.elts if isinstance(item, ast.Name) and item.id in kernel.constexprs]
                if len(names) == len(shape.elts) > 1:
                    found.append(tuple(names))
    return list(dict.fromkeys(found))


def ranges(kernel: KernelText) -> list[str]:
    """The parameter that each `tl.arange` of the kernel spans; an empty name for one that spans something else."""
    calls = (node for node in ast.walk(kernel.tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute))
    ends = [node.args[-1] if node.args else None for node in calls if node.func.attr == "arange"]  # type: ignore[attr-defined]
    return [end.id if isinstance(end, ast.Name) else "" for end in ends]


def extent(module: ModuleText, launch: LaunchText, bound: str, cases: Sequence[CaseLike]) -> int:
    """The largest value of a kernel's size parameter over all cases; 0 where the text does not tell.

    It tells where a module's own function, which no other calls, passes a size of one of its arguments.
    """
    scope = launch.scopes[0] if launch.scopes else None
    node = launch.given.get(bound)
    if scope is None or node is None or scope not in module.tree.body:
        return 0
    calls = (item for item in ast.walk(module.tree) if isinstance(item, ast.Call))
    if any(isinstance(item.func, ast.Name) and item.func.id == scope.name for item in calls):
        return 0
    sizes = [_size(node, scope, case) for case in cases]
    return 0 if 0 in sizes else max(sizes, default=0)


def _size(node: ast.expr, scope: Function, case: CaseLike) -> int:
    literal = number(node)
    if literal is not None:
        return literal
    match node:
        case ast.Name(id=name):
            return _named(name, scope, case)
        case ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="shape"), slice=index):
            return _dimension(name, _index(index), scope, case)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="size"), args=[index]):
            return _dimension(name, _index(index), scope, case)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="numel"), args=[]):
            return math.prod(_shape(name, scope, case) or (0,))
    return 0


def _index(node: ast.expr) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = number(node.operand)
        return None if inner is None else -inner
    return number(node)


def _named(name: str, scope: Function, case: CaseLike) -> int:
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            names = [item.id if isinstance(item, ast.Name) else "" for item in node.targets[0].elts]
            value = node.value.func if isinstance(node.value, ast.Call) else node.value
            if name in names and isinstance(value, ast.Attribute) and value.attr in ("shape", "size"):
                tensor = value.value
                return _dimension(tensor.id, names.index(name), scope, case) if isinstance(tensor, ast.Name) else 0
    found = bindings(scope, name)
    if len(found) == 1 and found[0] is not None:
        return _size(found[0], scope, case) if not isinstance(found[0], ast.Name) else 0
    given = None if found else _argument(name, scope, case)
    return given if type(given) is int else 0


def _dimension(name: str, index: int | None, scope: Function, case: CaseLike) -> int:
    shape = _shape(name, scope, case)
    return int(shape[index]) if index is not None and -len(shape) <= index < len(shape) else 0


def _shape(name: str, scope: Function, case: CaseLike) -> tuple[int, ...]:
    """The shape of an argument that the function does not bind to something else before."""
    found = getattr(_argument(name, scope, case), "shape", None)
    return () if found is None or bindings(scope, name) else tuple(found)


def _argument(name: str, scope: Function, case: CaseLike) -> Any:
    names = [item.arg for item in (*scope.args.posonlyargs, *scope.args.args)]
    return case.arguments[names.index(name)] if name in names and names.index(name) < len(case.arguments) else None
