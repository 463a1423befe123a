"""Finds every knob of a kernel module and makes it one that tuning can turn: `expose`."""

from __future__ import annotations

import ast
import dataclasses
import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from evo.syntax import module_tree
from operators.exposing.autotuners import unfold
from operators.exposing.draft import Draft, Knob
from operators.exposing.options import OPTIONAL, expose_option, options_of
from operators.exposing.reading import KernelText, ModuleText, read_module
from operators.exposing.spaces import CaseLike, accumulators, bounded, extent, fewer_warps, ranges, tile_choices
from operators.exposing.tiles import Tile, expose_tile, tiles_of
from operators.source import NotApplicableError, check

__all__ = ["CaseLike", "Exposed", "bounded", "expose"]


@dataclass(frozen=True)
class Exposed:
    """A module with its knobs declared.

    Attributes:
        source: Equivalent to the original in the configuration that it declares.
        found: A line per new knob, such as ``BLOCK of kernel add_kernel: 1024 → 256 … 4096``.
        left: Why something that might have been a knob was left as it is, a line each.
        names: The new knobs.
    """

    source: str
    found: tuple[str, ...]
    left: tuple[str, ...]
    names: tuple[str, ...] = ()


def expose(
    source: str, cases: Sequence[CaseLike] | None = None, *, target: str = "cuda:90", optional: Collection[str] = ()
) -> Exposed:
    """A module's source with every knob that can be found.

    Autotuners are unfolded; tile sizes that may take any value and launch options become knobs, whether they are literals, locals,
    constants, arguments or computed. One that the author computes has the default 0, which means: as the author's rule says.

    Args:
        source: Any module with Triton kernels.
        cases: The cases it is to be tuned on; their sizes bound the tiles.
        target: ``backend:arch``; some options exist on one backend only.
        optional: Which of `OPTIONAL` to expose too.

    Raises:
        NotApplicableError: The source cannot be read, has no kernel, or declares contradictory knobs. It is a ValueError.
    """
    unknown = sorted(set(optional) - set(OPTIONAL))
    if unknown:
        raise ValueError(f"optional knob {unknown[0]!r}; allowed: {', '.join(OPTIONAL)}")
    check(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        module = read_module(source, module_tree(source))
    draft, left = Draft(module), []
    _check_names(module)
    kernels = []
    for kernel in module.kernels.values():
        try:
            _ready(draft, kernel, target)
            kernels.append(kernel)
        except NotApplicableError as error:
            left.append(str(error))
    tiles = {kernel.name: tiles_of(kernel) for kernel in module.kernels.values()}
    left += _tiles(draft, kernels, tiles)
    for rank in range(5):
        for kernel in kernels:
            options = list(options_of(kernel, module.launches_of(kernel), target, optional))
            for option in options[rank : rank + 1]:
                try:
                    expose_option(draft, kernel, option)
                except NotApplicableError as error:
                    left.append(str(error))
    knobs = _bounded(draft, kernels, tiles, cases)
    text = draft.rendered(knobs)
    if knobs:
        check(text)
    return Exposed(text, tuple(knob.line for knob in knobs.values()), tuple(dict.fromkeys(left)), tuple(knobs))


def _check_names(module: ModuleText) -> None:
    """`CONFIG` must mean the knobs wherever the draft writes it."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            stored = (item for item in ast.walk(node) if isinstance(item, ast.Name) and not isinstance(item.ctx, ast.Load))
            if any(item.id == "CONFIG" for item in stored) or any(item.arg == "CONFIG" for item in node.args.args):
                raise NotApplicableError(f"{node.name} has a variable of its own that is called CONFIG")


def _ready(draft: Draft, kernel: KernelText, target: str) -> None:
    """Unfolds a kernel's autotuner, where it has one.

    Raises:
        NotApplicableError: Its launches may not be changed.
    """
    if kernel.foreign:
        raise NotApplicableError(f"{kernel.name} is decorated by {kernel.foreign[0]}, which may change its arguments")
    if kernel.autotuners:
        unfold(draft, kernel, target)
    elif not draft.module.launches_of(kernel):
        uses = (node for node in ast.walk(draft.module.tree) if isinstance(node, ast.Name) and node.id == kernel.name)
        if not any(uses):
            raise NotApplicableError(f"{kernel.name} is launched nowhere in the module")


def _tiles(draft: Draft, kernels: Sequence[KernelText], tiles: Mapping[str, Mapping[str, Tile]]) -> list[str]:
    left = []
    for kernel in kernels:
        dots = kernel.dots
        for tile in tiles[kernel.name].values():
            try:
                expose_tile(draft, kernel, tile, tiles, lambda _, default, dots=dots: tile_choices(default, dots=dots))  # type: ignore[misc]
            except NotApplicableError as error:
                left.append(str(error))
    return left


def _bounded(
    draft: Draft, kernels: Sequence[KernelText], tiles: Mapping[str, Mapping[str, Tile]], cases: Sequence[CaseLike] | None
) -> dict[str, Knob]:
    """The draft's knobs with their choices bounded, kernel by kernel."""
    found = dict(draft.knobs)
    for kernel in kernels:
        own = {name: knob for name, knob in draft.knobs.items() if knob.kernel == kernel.name}
        blocks = {name: block for name in own for block in tiles[kernel.name] if _named_after(name, block)}
        extents = dict.fromkeys(blocks, 0)
        for name, block in blocks.items():
            launches = draft.module.launches_of(kernel) if cases else []
            sizes = [extent(draft.module, launch, tiles[kernel.name][block].bound, cases or ()) for launch in launches]
            extents[name] = 0 if 0 in sizes else max(sizes, default=0)
        by_block = {block: name for name, block in blocks.items()}
        products = [[by_block.get(block, "") for block in product] for product in accumulators(kernel)]
        space = {name: knob.choices for name, knob in own.items()}
        keep = {name: knob.default for name, knob in own.items()}
        space = bounded(space, cases, keep=keep, extents=extents, products=products)
        spanned = ranges(kernel)
        if blocks and set(spanned) <= set(by_block):  # the ranges together bound the tile, whatever its form
            elements = math.prod(max(int(v) for v in space[by_block[block]]) for block in spanned)
            for name in own:
                if name.startswith("num_warps"):
                    space[name] = fewer_warps(space[name], elements, keep[name])
        found |= {name: dataclasses.replace(knob, choices=space[name]) for name, knob in own.items()}
    return found


def _named_after(knob: str, block: str) -> bool:
    return knob == block or (knob.startswith(f"{block}_") and knob[len(block) + 1 :].isdecimal())
