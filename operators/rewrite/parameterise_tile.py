"""Makes a literal tile size, or a launch option nobody chose, a knob that tuning can turn."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, instead, unused, with_argument, with_knob
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.guards import Cover, Guard, guards
from operators.source import Kernel, Launch, NotApplicableError, Source, assigned, code, find, grid, knob_names

WARPS = [1, 2, 4, 8, 16]
STAGES = [1, 2, 3, 4, 5]
DEFAULT_WARPS, DEFAULT_STAGES = 4, 3
"""What Triton takes for launches that do not say."""

LARGEST_TILE, LARGEST_DOT_TILE, SMALLEST_TILE = 65536, 256, 16


class ParameteriseTile(Rewrite):
    """`BLOCK=1024` at a launch, or a constant that feeds it, becomes `CONFIG["BLOCK"]` with powers of two around it in `SPACE`.

    A constexpr counts as a tile size where the kernel tiles a guarded range with it, so that any value is correct. Head sizes,
    flags and blocks that must span a whole row are left alone. `num_warps` and (for kernels with a loop) `num_stages` become
    knobs where they are literal or absent.
    """

    name = "parameterise_tile"
    when = "A tile size or launch option is a literal."
    cites = "Triton documentation, triton.Config."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per launch and parameter."""
        for launch in source.launches:
            kernel = source.kernels[launch.kernel]
            if kernel.decorated:
                continue
            for guard in _tiles(kernel):
                strategy = f"the tile size {guard.block} of {kernel.name} is a knob"
                yield Site(strategy, partial(_tile, source, kernel, launch, guard))
            for option, default, choices in () if launch.unpacks else _options(kernel):  # the dictionary may have it
                if option not in launch.arguments or _integer(launch.arguments[option].value) is not None:
                    strategy = f"{option} of {kernel.name} is a knob"
                    yield Site(strategy, partial(_option, source, launch, option, default, choices))


def _tiles(kernel: Kernel) -> list[Guard]:
    """One guard per block, for blocks that only ever tile a guarded range."""
    found = list(guards(kernel))
    whole = {guard.block for guard in found if guard.cover is Cover.WHOLE}
    return list({guard.block: guard for guard in found if guard.block not in whole}.values())


def _options(kernel: Kernel) -> Iterator[tuple[str, int, list[int]]]:
    yield "num_warps", DEFAULT_WARPS, WARPS
    if any(isinstance(node, ast.For | ast.While) for node in ast.walk(kernel.tree)):
        yield "num_stages", DEFAULT_STAGES, STAGES


def _integer(node: cst.CSTNode) -> int | None:
    text = code(node).strip()
    return int(text) if text.isdecimal() else None


def _choices(value: int, kernel: Kernel) -> list[int]:
    top = LARGEST_DOT_TILE if "dot" in kernel.uses else LARGEST_TILE
    return [
        size for size in (value // 4, value // 2, value, value * 2, value * 4) if size == value or SMALLEST_TILE <= size <= top
    ]


def _tile(source: Source, kernel: Kernel, launch: Launch, guard: Guard) -> cst.Module:
    node = launch.arguments.get(guard.block)
    if node is None:
        raise NotApplicableError(f"the launch of {kernel.name} does not give {guard.block}")
    places, value = _literal(source, launch, node.value)
    if value < 1 or value & (value - 1):
        raise NotApplicableError(f"{guard.block} = {value} is no power of two")
    if _integer(node.value) is not None:
        places = [*places, *_same_in_launch(launch, kernel, guard, value)]
    elif guard.cover is Cover.PROGRAM and not _follows(launch, code(node.value), guard.block):
        raise NotApplicableError(f"the grid of {kernel.name} does not follow {guard.block}")
    knob = unused(guard.block, knob_names(source.module))
    edits = [(place, instead(f'CONFIG["{knob}"]')) for place in places]
    return with_knob(edited(source.module, edits), knob, value, _choices(value, kernel))


def _literal(source: Source, launch: Launch, node: cst.BaseExpression) -> tuple[list[cst.CSTNode], int]:
    """The nodes to replace and the value of a tile size that is a literal or a constant."""
    value = _integer(node)
    if value is not None:
        return [node], value
    if not isinstance(node, cst.Name):
        raise NotApplicableError(f"the tile size {code(node)} of {launch.kernel} is no literal")
    local = assigned(launch.function, node.value)
    constants = local or [value for line in source.module.body for value in _constant(line, node.value)]
    value = _integer(constants[0]) if len(constants) == 1 else None
    if value is None:
        raise NotApplicableError(f"the tile size {node.value} of {launch.kernel} is no constant")
    if local:
        return [constants[0]], value
    # The module's constant stays where it is; every read of it in the launching function becomes the knob.
    for kernel in source.kernels.values():
        reads = {name.id for name in ast.walk(kernel.tree) if isinstance(name, ast.Name)}
        if node.value in reads - set(kernel.parameters):
            raise NotApplicableError(f"{kernel.name} reads the constant {node.value} itself")
    keywords = {id(a.keyword) for a in find(launch.function, cst.Arg) if a.keyword is not None}
    return [name for name in find(launch.function, cst.Name, m.Name(node.value)) if id(name) not in keywords], value


def _constant(line: cst.CSTNode, name: str) -> list[cst.CSTNode]:
    return assigned(cst.Module([line]), name) if isinstance(line, cst.SimpleStatementLine) else []


def _follows(launch: Launch, size: str, block: str) -> bool:
    """Whether the number of programs is computed from the tile size."""
    divisions = find(launch.function, cst.Call, m.Call(func=m.Attribute(attr=m.Name("cdiv"))))
    return any(size in code(call) or f'["{block}"]' in code(call) or f"['{block}']" in code(call) for call in divisions)


def _same_in_launch(launch: Launch, kernel: Kernel, guard: Guard, value: int) -> list[cst.CSTNode]:
    """Other places that must follow a literal tile size: the grid's tile count and divisibility flags."""
    tiles = grid(launch) if guard.cover is Cover.PROGRAM else []
    roots = [*tiles, *(argument for argument in launch.arguments.values() if "%" in code(argument))]
    found: list[cst.CSTNode] = [node for root in roots for node in find(root, cst.Integer, m.Integer(str(value)))]
    others = [name for name in kernel.constexprs - {guard.block} if name in launch.arguments]
    if found and any(_integer(launch.arguments[name].value) == value for name in others):
        raise NotApplicableError(f"which tile size the number {value} in the launch of {kernel.name} means is not clear")
    if guard.cover is Cover.PROGRAM and not found and not _follows(launch, f'"{guard.block}"', guard.block):
        raise NotApplicableError(f"the grid of {kernel.name} does not follow {guard.block}")
    return found


def _option(source: Source, launch: Launch, option: str, default: int, choices: list[int]) -> cst.Module:
    given = launch.arguments.get(option)
    value = default if given is None else _integer(given.value)
    assert value is not None
    knob = unused(option, knob_names(source.module))
    text = f'CONFIG["{knob}"]'
    if given is None:
        module = edited(source.module, [(launch.call, lambda call: with_argument(call, option, text))])
    else:
        module = edited(source.module, [(given.value, instead(text))])
    return with_knob(module, knob, value, sorted({*choices, value}))
