"""Makes tile sizes knobs: constexprs that tile a guarded range, wherever a launch gets their value from."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from operators.exposing.draft import Draft, Knob, Place
from operators.exposing.reading import Function, KernelText, LaunchText, ModuleText, bindings, parameter_of, reads_config
from operators.exposing.values import alike, number
from operators.rewrite.guards import Cover, Definitions, arange_block, guards
from operators.source import NotApplicableError, called

Choices = Callable[[str, int], tuple[int, ...]]
"""From the knob's name and default (0 for a rule of the author's) to what it may be."""


@dataclass(frozen=True)
class Tile:
    """A constexpr for which any power of two is right.

    Attributes:
        block: The parameter.
        bound: Parameter that holds the size it tiles, where that is known.
        follows: The grid must follow it: each program has a tile of its own.
    """

    block: str
    bound: str
    follows: bool


@dataclass(frozen=True)
class _Feed:
    """Where a launch gets a tile size from: what it stands for, the expressions to change, the value (None: a rule)."""

    key: object
    places: tuple[Place, ...]
    value: int | None
    commit: Callable[[str], None] | None = None


def tiles_of(kernel: KernelText) -> Mapping[str, Tile]:
    """Blocks that only ever tile guarded ranges, by name; those that must span a whole row are not among them."""
    found: dict[str, Tile] = {}
    every = [(guard.block, guard.bound, guard.cover) for guard in guards(kernel)] + list(_steps(kernel))
    whole = {block for block, _, cover in every if cover is Cover.WHOLE}
    for block, bound, cover in every:
        if block not in whole:
            known = found.get(block, Tile(block, bound, follows=False))
            found[block] = Tile(block, known.bound, known.follows or cover is Cover.PROGRAM)
    return found


def _steps(kernel: KernelText) -> Iterator[tuple[str, str, Cover]]:
    """Guards whose bound is no parameter, such as a length that the kernel loads, and loops from or to anywhere."""
    definitions = Definitions(kernel)
    for node in ast.walk(kernel.tree):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Lt):
            terms = _terms(node.left, definitions)
            bound = node.comparators[0]
            if isinstance(bound, ast.BinOp) and isinstance(bound.op, ast.Sub):
                terms += _terms(bound.right, definitions)
            blocks = [block for block in map(arange_block, terms) if block in kernel.constexprs]
            starts = [term for term in terms if not arange_block(term)]
            cover = _cover(starts, blocks[0], definitions) if len(blocks) == 1 and len(starts) == len(terms) - 1 else None
            if cover is not None:
                yield blocks[0], "", cover


def _terms(node: ast.expr, definitions: Definitions, depth: int = 0) -> list[ast.expr]:
    node = definitions.resolve(node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and depth < 8:
        return _terms(node.left, definitions, depth + 1) + _terms(node.right, definitions, depth + 1)
    return [node]


def _cover(starts: Sequence[ast.expr], block: str, definitions: Definitions) -> Cover | None:
    if len(starts) != 1:
        return None if starts else Cover.WHOLE
    start = starts[0]
    if isinstance(start, ast.Name) and start.id in definitions.loops:
        loop = definitions.loops[start.id]
        stepped = isinstance(loop, ast.Call) and ast.unparse(loop.func) in ("range", "tl.range") and len(loop.args) == 3
        return Cover.LOOP if stepped and isinstance(loop, ast.Call) and ast.unparse(loop.args[2]) == block else None
    if isinstance(start, ast.BinOp) and isinstance(start.op, ast.Mult):
        factors = [definitions.resolve(start.left), definitions.resolve(start.right)]
        programs = [factor for factor in factors if called(factor) == "program_id"]
        return Cover.PROGRAM if programs and any(ast.unparse(factor) == block for factor in factors) else None
    return None


def expose_tile(draft: Draft, kernel: KernelText, tile: Tile, tiles: Mapping[str, Mapping[str, Tile]], choices: Choices) -> None:
    """Makes a tile size of a kernel a knob at each of its launches.

    Raises:
        NotApplicableError: At some launch it cannot be one; those before it keep their knob.
    """
    if (kernel.name, tile.block) in draft.shared:  # the autotuner gave it
        return
    reasons: list[str] = []
    for launch in draft.module.launches_of(kernel):
        node = kernel.computed.get(tile.block) or launch.given.get(tile.block)
        if node is not None and reads_config(node, launch.scopes):
            continue
        try:
            feed = _feed(draft, launch, tile, tiles)
            if feed.value is not None and (feed.value < 1 or feed.value & (feed.value - 1)):
                raise NotApplicableError(f"{tile.block} = {feed.value} of {kernel.name} is no power of two")
            known = draft.shared.get(feed.key)
            done = (feed.key, tuple(draft.module.span(place.node) for place in feed.places))
            if known is not None and done in draft.shared:
                continue
            name = known or draft.new_name(tile.block)
            draft.claim(feed.places, name)
            if feed.commit is not None and done not in draft.shared:
                feed.commit(name)
            draft.shared[done] = draft.shared[feed.key] = name
            if known is None:
                default = feed.value or 0
                draft.declare(Knob(name, default, choices(tile.block, default), kernel.name, ruled=feed.value is None))
        except NotApplicableError as error:
            reasons.append(str(error))
    if reasons:
        raise NotApplicableError(reasons[0])


def _feed(draft: Draft, launch: LaunchText, tile: Tile, tiles: Mapping[str, Mapping[str, Tile]]) -> _Feed:
    module, kernel, node = draft.module, launch.kernel, launch.given.get(tile.block)
    if tile.block in kernel.computed:
        return _from_heuristics(draft, launch, tile)
    if node is None:
        return _from_signature(draft, launch, tile)
    value = number(node)
    if value is not None:
        places = (Place(node, wrapped=False), *_same_in_launch(launch, tile, value))
        return _Feed((kernel.name, tile.block, value), places, value)
    if not launch.scopes:
        raise NotApplicableError(f"{tile.block} of {kernel.name} is given outside functions, when the module is imported")
    if not isinstance(node, ast.Name):
        return _from_expression(launch, tile, node)
    _check_name(module, launch, node.id, tiles)
    if tile.follows and not _follows(launch, tile, node):
        raise NotApplicableError(f"the grid of {kernel.name} does not follow {tile.block}")
    for scope in launch.scopes:
        found = bindings(scope, node.id)
        if parameter_of(scope, node.id):
            return _from_parameter(draft, scope, node.id, found)
        if found:
            return _from_local(scope, node.id, found)
    return _from_constant(module, launch, node.id)


def _check_name(module: ModuleText, launch: LaunchText, name: str, tiles: Mapping[str, Mapping[str, Tile]]) -> None:
    """Nothing that the same name feeds may need it to be as it is."""
    for other in module.launches:
        if other.scopes[:1] == launch.scopes[:1]:
            for parameter, value in other.given.items():
                if isinstance(value, ast.Name) and value.id == name and parameter not in tiles[other.kernel.name]:
                    raise NotApplicableError(f"{name} also feeds {parameter} of {other.kernel.name}, which is no free tile size")


def _from_heuristics(draft: Draft, launch: LaunchText, tile: Tile) -> _Feed:
    rule = launch.kernel.computed[tile.block]
    if tile.follows and not _follows(launch, tile, None):
        raise NotApplicableError(f"the grid of {launch.kernel.name} does not follow {tile.block}")
    key = (launch.kernel.name, tile.block)
    if isinstance(rule, ast.Lambda):
        return _Feed(key, (Place(rule.body, wrapped=True),), None)
    return _Feed(key, (), None, lambda knob: draft.override(rule, knob))


def _from_signature(draft: Draft, launch: LaunchText, tile: Tile) -> _Feed:
    """The default in the kernel's signature, which launches give from now on."""
    kernel = launch.kernel
    value = number(kernel.defaults.get(tile.block))
    if value is None or launch.opaque or launch.stretched:
        raise NotApplicableError(f"a launch of {kernel.name} does not show its {tile.block}")
    places = _same_in_launch(launch, tile, value)

    def commit(knob: str) -> None:
        draft.argument(launch.call, tile.block, f'CONFIG["{knob}"]')

    return _Feed((kernel.name, tile.block, value), tuple(places), value, commit)


def _from_expression(launch: LaunchText, tile: Tile, node: ast.expr) -> _Feed:
    """`meta["BLOCK"]`, `config.block` and the like: every place in the function that reads the same."""
    scope = launch.scopes[0]
    if tile.follows and not _follows(launch, tile, node):
        raise NotApplicableError(f"the grid of {launch.kernel.name} does not follow {tile.block}")
    places = [item for item in _expressions(scope) if isinstance(item, type(node)) and alike(item, node)]
    return _Feed((id(scope), ast.dump(node)), tuple(Place(item, wrapped=True) for item in places), None)


def _from_parameter(draft: Draft, scope: Function, name: str, found: Sequence[ast.expr | None]) -> _Feed:
    """What callers pass stays where the knob is 0; the knob takes its place in the function's first line."""
    body = scope.body[1:] if ast.get_docstring(scope) is not None else scope.body
    if not body or None in found or body[0].lineno == scope.lineno:
        raise NotApplicableError(f"{name} is a parameter of {scope.name} that is also computed there")
    line = min([body[0].lineno, *(item.lineno for item in getattr(body[0], "decorator_list", []))])
    place = draft.module.line_start(line)

    def commit(knob: str) -> None:
        draft.insert(place, f'{" " * body[0].col_offset}{name} = CONFIG["{knob}"] or {name}\n')

    return _Feed((id(scope), name), tuple(Place(item, wrapped=True) for item in found if item is not None), None, commit)


def _from_local(scope: Function, name: str, found: Sequence[ast.expr | None]) -> _Feed:
    values = [item for item in found if item is not None]
    if len(values) < len(found):
        return _Feed((id(scope), name), tuple(Place(item, wrapped=True) for item in _reads(scope, name)), None)
    value = number(values[0]) if len(values) == 1 else None
    return _Feed((id(scope), name), tuple(Place(item, wrapped=value is None) for item in values), value)


def _from_constant(module: ModuleText, launch: LaunchText, name: str) -> _Feed:
    """A constant stays where it is, since it is read at import; every read of it in the launching function becomes the knob."""
    found = bindings(module.tree, name)
    if not found:
        raise NotApplicableError(f"{name}, which a launch of {launch.kernel.name} passes, is bound nowhere in the module")
    for kernel in module.kernels.values():
        if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(kernel.node)) and name not in kernel.parameters:
            raise NotApplicableError(f"{kernel.name} reads the constant {name} itself")
    value = number(found[0]) if len(found) == 1 else None
    reads = _reads(launch.scopes[-1], name)
    return _Feed(("constant", name), tuple(Place(item, wrapped=value is None) for item in reads), value)


def _expressions(scope: Function) -> Iterator[ast.expr]:
    """Every expression but those in f-strings, which only tell people, and whose places older Pythons get wrong."""
    stack: list[ast.AST] = list(reversed(scope.body))
    while stack:
        node = stack.pop()
        if isinstance(node, ast.JoinedStr):
            continue
        if isinstance(node, ast.expr):
            yield node
        stack += reversed(list(ast.iter_child_nodes(node)))


def _reads(scope: Function, name: str) -> list[ast.expr]:
    return [
        item for item in _expressions(scope) if isinstance(item, ast.Name) and item.id == name and isinstance(item.ctx, ast.Load)
    ]


def _follows(launch: LaunchText, tile: Tile, node: ast.expr | None) -> bool:
    """Whether the number of programs is computed from the tile size: by its name, or as `META["BLOCK"]`."""
    roots: list[ast.AST] = [launch.index.slice, *launch.scopes[:1]]
    divisions = [item for root in roots for item in ast.walk(root) if _divides(item)]
    for division in divisions:
        for item in ast.walk(division):
            if isinstance(item, ast.Constant) and item.value == tile.block:
                return True
            if node is not None and isinstance(item, type(node)) and alike(item, node):
                return True
    return False


def _divides(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""
        return "cdiv" in name or name in ("ceil", "ceil_div")
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv)


def _grid(launch: LaunchText) -> list[ast.AST]:
    """What holds the grid: what stands in the brackets and, where that is a name, what is assigned to it."""
    node = launch.index.slice
    named = bindings(launch.scopes[0], node.id) if isinstance(node, ast.Name) and launch.scopes else []
    return [node, *(item for item in named if item is not None)]


def _same_in_launch(launch: LaunchText, tile: Tile, value: int) -> list[Place]:
    """Other places that must follow a literal tile size: the grid's tile count and divisibility flags."""
    roots = _grid(launch) if tile.follows else []
    roots += [item for item in launch.given.values() if any(isinstance(part, ast.Mod) for part in ast.walk(item))]
    found = [item for root in roots for item in ast.walk(root) if _is(item, value)]
    twins = [name for name in launch.kernel.constexprs - {tile.block} if number(launch.given.get(name)) == value]
    if found and twins:
        raise NotApplicableError(f"which tile size the number {value} in the launch of {launch.kernel.name} means is not clear")
    if tile.follows and not found and not _follows(launch, tile, None):
        raise NotApplicableError(f"the grid of {launch.kernel.name} does not follow {tile.block}")
    rounded = [
        item
        for root in roots
        for division in ast.walk(root)
        if isinstance(division, ast.BinOp) and isinstance(division.op, ast.FloorDiv) and _is(division.right, value)
        for item in ast.walk(division.left)
        if _is(item, value - 1)
    ]
    equal = [Place(item, wrapped=False) for item in found if isinstance(item, ast.expr)]
    return [*equal, *(Place(item, wrapped=False, less=1) for item in rounded if isinstance(item, ast.expr))]


def _is(node: ast.AST, value: int) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value == value
