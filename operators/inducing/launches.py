"""What a kernel is launched with: its knobs and their choices, its grid, and the arguments that are left to it."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evo.syntax import expression_tree
from operators.inducing.generated import GeneratedKernel
from operators.inducing.tidying import PREFIXES
from operators.source import NotApplicableError

LARGEST = {"XBLOCK": 4096, "YBLOCK": 1024, "ZBLOCK": 1024, "RBLOCK": 16384, "R0_BLOCK": 16384, "R1_BLOCK": 2048}
"""Inductor leaves masks out where a size is a multiple of its largest block, so blocks must divide that."""
TILES = ("BLOCK_M", "BLOCK_N", "BLOCK_K")
_GRIDS = {
    "Grid1D": ("x",),
    "Grid2D": ("x", "y"),
    "Grid3D": ("x", "y", "z"),
    "Grid2DWithYZOverflow": ("x", "y"),
}
MAX_Y = 65535


@dataclass
class Launchable:
    """A kernel that is ready to be written.

    Attributes:
        name: Of the function in the module.
        node: Its definition.
        companions: Functions it calls, by name.
        kept: Positions of the arguments of Inductor's launch that it still takes.
        blocks: Its constexpr parameters, which the launch gives.
        config: Defaults of its knobs, launch options included.
        space: Their choices.
        hints: Other configurations that Inductor would try.
        kind: Of its grid.
        fixed: Parameters that are constants in its body.
        tiles: For a template, parameter or constant of the body that M and N are.
    """

    name: str
    node: ast.FunctionDef
    companions: Mapping[str, ast.FunctionDef]
    kept: tuple[int, ...]
    parameters: tuple[str, ...]
    blocks: tuple[str, ...]
    config: dict[str, object]
    space: dict[str, list[int]]
    hints: list[dict[str, object]]
    kind: str
    fixed: dict[str, int] = field(default_factory=dict)
    tiles: dict[str, str] = field(default_factory=dict)


def launchable(
    name: str, kernel: GeneratedKernel, configurations: Sequence[Mapping[str, object]], companions: Mapping[str, ast.FunctionDef]
) -> Launchable:
    """Prepares a kernel, whose node is rewritten: parameters that its body fixes are taken off, tiles become parameters.

    Raises:
        NotApplicableError: Its grid is of a kind that is not known.
    """
    if kernel.grid not in (*_GRIDS, "FixedGrid"):
        raise NotApplicableError(f"kernel {kernel.name} has a grid of the kind {kernel.grid or 'unknown'}")
    fixed, taken = _fixed(kernel.node)
    arguments = kernel.node.args.args
    constexprs = [item.arg for item in arguments if item.annotation is not None and "constexpr" in ast.unparse(item.annotation)]
    plain = [item for item in arguments if item.arg not in constexprs]
    used = {node.id for node in ast.walk(kernel.node) if isinstance(node, ast.Name)}
    kept = tuple(index for index, item in enumerate(plain) if item.arg not in taken and item.arg in used)
    tiles = _tiles(kernel) if kernel.template else {}
    blocks = [*constexprs, *tiles]
    kept_arguments: list[ast.arg] = [plain[index] for index in kept]
    for block in blocks:
        kept_arguments.append(ast.arg(block, expression_tree("tl.constexpr")))
    kernel.node.args.args = kept_arguments
    kernel.node.name = name
    tabled = [_translated(item) for item in configurations] or [{}]
    config = {**tiles, **tabled[0]}
    config = {key: value for key, value in config.items() if key in blocks or key in ("num_warps", "num_stages")}
    missing = [block for block in blocks if block not in config]
    if missing:
        raise NotApplicableError(f"kernel {kernel.name} has no configuration for {', '.join(missing)}")
    loops = any(isinstance(node, ast.For | ast.While) for node in ast.walk(kernel.node))
    space = {key: choices(key, value, kernel, loops=loops) for key, value in config.items()}
    hints = [{key: item[key] for key in config if key in item} for item in tabled[1:]]
    sizes = {size: _expression(kernel.node, size) for size in ("M", "N")} if tiles else {}
    return Launchable(
        name,
        kernel.node,
        companions,
        kept,
        tuple(item.arg for item in plain),
        tuple(blocks),
        config,
        space,
        hints,
        kernel.grid,
        fixed,
        sizes,
    )


def _translated(config: Mapping[str, object]) -> dict[str, object]:
    return {PREFIXES.get(key, key): value for key, value in config.items()}


def _fixed(node: ast.FunctionDef) -> tuple[dict[str, int], set[str]]:
    """Parameters that the body assigns a number; as locals they stay."""
    names = {item.arg for item in node.args.args}
    found = {}
    for item in node.body:
        target, value = (item.targets[0], item.value) if isinstance(item, ast.Assign) else (None, None)
        if (
            isinstance(target, ast.Name)
            and target.id in names
            and isinstance(value, ast.Constant)
            and isinstance(value.value, int)
        ):
            found[target.id] = value.value
    return found, set(found)


def _tiles(kernel: GeneratedKernel) -> dict[str, object]:
    """Takes the tiles of a matrix template out of its body, so that they can be given."""
    if _expression(kernel.node, "M") == "" or _expression(kernel.node, "N") == "":
        return {}
    tiles = {key: value for key, value in kernel.template.items() if key in TILES}
    if len(tiles) != len(TILES):
        return {}
    kernel.node.body = [
        item
        for item in kernel.node.body
        if not (isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.target.id in tiles)
    ]
    return tiles


def _expression(node: ast.FunctionDef, name: str) -> str:
    for item in node.body:
        if isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name) and item.targets[0].id == name:
            return ast.unparse(item.value)
    return ""


def choices(key: str, value: object, kernel: GeneratedKernel, *, loops: bool) -> list[int]:
    """What a knob may be, its default among them."""
    assert isinstance(value, int)
    if key == "num_warps":
        found = [1, 2, 4, 8, 16]
    elif key == "num_stages":
        found = [1, 2, 3, 4, 5] if loops and kernel.template else [1, 2, 3] if loops else [1]
    elif key in TILES:
        found = [16, 32, 64, 128, 256] if key != "BLOCK_K" else [16, 32, 64, 128]
        if key == "BLOCK_K" and kernel.template.get("EVEN_K"):
            size = _expression(kernel.node, "K")
            found = [item for item in found if size.isdecimal() and int(size) % item == 0]
    else:
        found = [item for item in (value >> 3, value >> 2, value >> 1, value, value << 1, value << 2, value << 3) if item >= 1]
        found = [item for item in found if item <= LARGEST.get(key, 1024)]
    return sorted({*found, value})


def grid_text(kernel: Launchable, given: Mapping[str, str], fixed_grid: Sequence[str], knob: Mapping[str, str]) -> str:
    """The grid of a launch.

    Args:
        kernel: What is launched.
        given: Parameter → expression of the launch.
        fixed_grid: The three expressions that Inductor passes where the launch gives the grid.
        knob: Knob → expression that reads it.
    """
    if kernel.kind == "FixedGrid":
        sizes = list(fixed_grid)
        if kernel.tiles:
            m, n = (_outside(kernel.tiles[size], given) for size in ("M", "N"))
            sizes[0] = f"triton.cdiv({m}, {knob['BLOCK_M']}) * triton.cdiv({n}, {knob['BLOCK_N']})"
        while len(sizes) > 1 and sizes[-1] == "1":
            sizes.pop()
        return f"({', '.join(sizes)},)" if len(sizes) == 1 else f"({', '.join(sizes)})"
    sizes = []
    for axis in _GRIDS[kernel.kind]:
        numel = given.get(f"{axis}numel", str(kernel.fixed.get(f"{axis}numel", "")))
        if not numel:
            raise NotApplicableError(f"kernel {kernel.name} has no {axis}numel")
        block = knob.get(f"{axis.upper()}BLOCK")
        sizes.append(numel if block is None else f"triton.cdiv({numel}, {block})")
    if kernel.kind == "Grid2DWithYZOverflow":
        y = sizes[1]
        sizes = [sizes[0], f"triton.cdiv({y}, triton.cdiv({y}, {MAX_Y}))", f"triton.cdiv({y}, {MAX_Y})"]
        return f"({', '.join(sizes)})"
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"


def _outside(text: str, given: Mapping[str, str]) -> str:
    """An expression of a kernel's body as its launch writes it."""
    tree = _Outside(given).visit(expression_tree(text))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if "tl" in names:
        raise NotApplicableError(f"the size {text} of a template is computed in its kernel")
    return ast.unparse(ast.fix_missing_locations(tree))


class _Outside(ast.NodeTransformer):
    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if ast.unparse(node.func) == "tl.full" and len(node.args) >= 2:
            return self.visit(node.args[1])  # type: ignore[no-any-return]
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return expression_tree(self._given.get(node.id, node.id))


def readable(name: str) -> str:
    """`triton_red_fused_exp_sub_0` → `exp_sub_kernel`; numbers are given where two would be equal."""
    text = re.sub(r"^triton_(poi|red|per|tem|for|spl)_(fused)?_?", "", name)
    text = re.sub(r"_?\d+$", "", text).strip("_")
    words = list(dict.fromkeys(item for item in text.split("_") if item))
    short = "_".join(words)[:48].strip("_")
    return f"{short}_kernel" if short and not short[0].isdigit() else "fused_kernel"
