"""Reads loads of a matrix's tiles: which rows and columns they take, also where pointers move along in a loop."""

from __future__ import annotations

import ast
from dataclasses import dataclass

import libcst as cst

from operators.rewrite.accesses import expression_of, keyword, positional
from operators.rewrite.guards import Definitions, arange_block
from operators.source import Kernel, NotApplicableError, code

SIDES = {":, None": 0, "(:, None)": 0, "None, :": 1, "(None, :)": 1}


@dataclass(frozen=True)
class Axis:
    """Offsets `start + tl.arange(0, block)` along one axis of a matrix, below `bound`, `stride` elements apart.

    Attributes:
        wraps: They are taken modulo `bound` instead of masked, which is the same where `bound` is a multiple of `block`.
    """

    start: str
    block: str
    bound: str
    stride: str
    wraps: bool = False


@dataclass(frozen=True)
class Tile:
    """A masked load of a matrix's tile through parameter `base`: rows, then columns."""

    call: cst.Call
    base: str
    axes: tuple[Axis, Axis]


@dataclass(frozen=True)
class _Bound:
    """`offsets < bound - begin`; `begin` is empty in `offsets < bound`."""

    offsets: str
    bound: str
    begin: str


def matrix_tile(kernel: Kernel, call: cst.Call) -> Tile:
    """Reads a load; raises NotApplicableError where it is not `p + rows * s + columns` with a mask that says both bounds."""
    mask, other = keyword(call, "mask"), keyword(call, "other")
    extra = {item.keyword.value for item in call.args if item.keyword is not None} - {"mask", "other"}
    if mask is None or other is None or code(other) not in ("0", "0.0") or extra:
        raise NotApplicableError(f"a load of {kernel.name} has no mask, or other than zeros beyond it")
    definitions = Definitions(kernel)
    pointer = expression_of(positional(call)[0])
    moved = _moved(kernel, pointer)
    terms = _flat(definitions, moved[0] if moved else pointer, ast.Add)
    bases = [term for term in terms if isinstance(term, ast.Name) and term.id in kernel.parameters]
    written = {node.id for node in ast.walk(kernel.tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    if len(bases) != 1 or len(terms) != 3 or bases[0].id in written:
        raise NotApplicableError(f"an address of {kernel.name} is not a matrix plus rows plus columns")
    bounds = _bounds(definitions, expression_of(mask))
    found: dict[int, Axis] = {}
    for term in terms:
        if term is not bases[0]:
            side, axis = _axis(kernel, definitions, term, bounds)
            found[side] = axis
    if set(found) != {0, 1} or set(bounds) != {side for side, axis in found.items() if not axis.wraps}:
        raise NotApplicableError(f"the mask of a load of {kernel.name} is not rows below a bound and columns below a bound")
    begun = [side for side, bound in bounds.items() if bound.begin]
    if len(begun) != (1 if moved else 0):
        raise NotApplicableError(f"the mask of a load of {kernel.name} does not move as its pointer does")
    if moved:
        _check_steps(kernel, definitions, found[begun[0]], moved[1], bounds[begun[0]].begin)
    return Tile(call, bases[0].id, (found[0], found[1]))


def _moved(kernel: Kernel, pointer: ast.expr) -> tuple[ast.expr, ast.AugAssign] | None:
    """What a pointer begins as, and the statement that moves it, where it does."""
    if not isinstance(pointer, ast.Name):
        return None
    first = [n.value for n in ast.walk(kernel.tree) if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == pointer.id]
    steps = [n for n in ast.walk(kernel.tree) if isinstance(n, ast.AugAssign) and ast.unparse(n.target) == pointer.id]
    return (first[0], steps[0]) if len(first) == len(steps) == 1 and isinstance(steps[0].op, ast.Add) else None


def _check_steps(kernel: Kernel, definitions: Definitions, axis: Axis, step: ast.AugAssign, begin: str) -> None:
    """Raises NotApplicableError unless each round of a loop from 0 moves the pointer by a block, and `begin` with it."""
    one = {axis.block} if axis.stride == "1" else {f"{axis.block} * {axis.stride}", f"{axis.stride} * {axis.block}"}
    loops = [node for node in ast.walk(kernel.tree) if isinstance(node, ast.For) and step in node.body]
    if len(loops) != 1 or not isinstance(loops[0].iter, ast.Call) or not isinstance(loops[0].target, ast.Name):
        raise NotApplicableError(f"the pointers of {kernel.name} do not move in one loop")
    given = [ast.unparse(definitions.resolve(item)) for item in loops[0].iter.args]
    given = given if len(given) > 1 else ["0", *given]
    target = loops[0].target.id
    counted = given == ["0", f"tl.cdiv({axis.bound}, {axis.block})"] and begin in (
        f"{target} * {axis.block}",
        f"{axis.block} * {target}",
    )
    stepped = given == ["0", axis.bound, axis.block] and begin == target
    if ast.unparse(loops[0].iter.func) not in ("range", "tl.range") or ast.unparse(definitions.resolve(step.value)) not in one:
        raise NotApplicableError(f"the pointers of {kernel.name} do not move by a block a round")
    if not counted and not stepped:
        raise NotApplicableError(f"the loop of {kernel.name} does not go from 0 over all blocks of {axis.bound}")


def _step_to(definitions: Definitions, node: ast.expr) -> ast.expr:
    """What a name stands for; what only reshapes is kept."""
    while isinstance(node, ast.Name) and definitions.step(node) is not node:
        node = definitions.step(node)
    return node


def _flat(definitions: Definitions, node: ast.expr, kind: type[ast.operator]) -> list[ast.expr]:
    """The terms of a sum, or of what else a kind of operator joins."""
    node = _step_to(definitions, node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, kind):
        return _flat(definitions, node.left, kind) + _flat(definitions, node.right, kind)
    return [node]


def _side(definitions: Definitions, node: ast.expr) -> tuple[int, ast.expr]:
    """Axis and offsets of `offsets[:, None]` and `offsets[None, :]`."""
    node = _step_to(definitions, node)
    if not isinstance(node, ast.Subscript) or ast.unparse(node.slice) not in SIDES:
        raise NotApplicableError(f"{ast.unparse(node)} is no row or column of offsets")
    return SIDES[ast.unparse(node.slice)], node.value


def _bounds(definitions: Definitions, mask: ast.expr) -> dict[int, _Bound]:
    """Side → each comparison of a mask."""
    found: dict[int, _Bound] = {}
    for part in _flat(definitions, mask, ast.BitAnd):
        if isinstance(part, ast.Subscript) and isinstance(_step_to(definitions, part.value), ast.Compare):  # (rows < M)[:, None]
            inner = _step_to(definitions, part.value)
            assert isinstance(inner, ast.Compare)
            left: ast.expr = ast.Subscript(inner.left, part.slice, ast.Load())
            part = ast.Compare(left, inner.ops, inner.comparators)
        if not isinstance(part, ast.Compare) or len(part.ops) != 1 or not isinstance(part.ops[0], ast.Lt):
            raise NotApplicableError(f"{ast.unparse(part)} is no comparison with a bound")
        side, offsets = _side(definitions, part.left)
        bound, begin = part.comparators[0], ""
        if isinstance(bound, ast.BinOp) and isinstance(bound.op, ast.Sub):
            begin = ast.unparse(bound.right)
            bound = bound.left
        found[side] = _Bound(ast.unparse(offsets), ast.unparse(bound), begin)
    return found


def _axis(kernel: Kernel, definitions: Definitions, term: ast.expr, bounds: dict[int, _Bound]) -> tuple[int, Axis]:
    stride = "1"
    if isinstance(term, ast.BinOp) and isinstance(term.op, ast.Mult):
        sides = [(term.left, term.right), (term.right, term.left)]
        term, factor = next(((a, b) for a, b in sides if isinstance(b, ast.Name) and b.id in kernel.parameters), (term, term))
        stride = ast.unparse(factor)
    side, offsets = _side(definitions, term)
    bound = bounds.get(side, _Bound("", "", ""))
    inside = _step_to(definitions, offsets)
    wraps = side not in bounds and isinstance(inside, ast.BinOp) and isinstance(inside.op, ast.Mod)
    if wraps and isinstance(inside, ast.BinOp):
        bound = _Bound(ast.unparse(inside.left), ast.unparse(inside.right), "")
        offsets = inside.left
    parts = _flat(definitions, offsets, ast.Add)
    blocks = [arange_block(part) for part in parts]
    starts = [ast.unparse(part) for part, block in zip(parts, blocks, strict=True) if not block]
    block = next((item for item in blocks if item), "")
    starts += [bound.begin] if bound.begin else []
    known = bound.bound in kernel.parameters and (stride == "1" or stride in kernel.parameters)
    if block not in kernel.constexprs or len(starts) != 1 or bound.offsets != ast.unparse(offsets) or not known:
        raise NotApplicableError(f"{ast.unparse(offsets)} of {kernel.name} is no tile below a bound of the matrix")
    return side, Axis(starts[0], block, bound.bound, stride, wraps)
