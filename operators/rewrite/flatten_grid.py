"""Turns a grid of several axes into one axis, which other rewrites (persistent programs, tiles per program) ask for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import libcst as cst

from operators.edits import edited, instead, unused
from operators.rewrite.accesses import axis_of, calls_of, places
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.grids import axes, passable
from operators.rewrite.parameters import Edits, only_launches, passed, with_prologue
from operators.source import Kernel, NotApplicableError, Source, code


class FlattenGrid(Rewrite):
    """`kernel[(a, b)]` becomes `kernel[(a * b,)]`, and the kernel divides its index: programs run in the order they had.

    One axis may have 2**31 - 1 programs, the others 65535. Small grids cost a division per program.
    """

    name = "flatten_grid"
    when = "A grid of two or three axes should become persistent, or the second axis may exceed 65535 programs."
    cites = "CUDA C++ Programming Guide, compute capabilities (limits of a grid); Triton tutorial 09-persistent-matmul."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per kernel that uses several axes."""
        for kernel in source.kernels.values():
            strategy = f"the grid of {kernel.name} has one axis"
            yield Site(strategy, partial(_rewrite, source, kernel))


def _rewrite(source: Source, kernel: Kernel) -> cst.Module:
    launches = only_launches(source, kernel)
    found = places(source, kernel)
    if not set(found) - {0}:
        raise NotApplicableError(f"{kernel.name} uses one axis of its grid")
    grids = [axes(launch) for launch in launches]
    count = len(grids[0].elements)
    if any(len(grid.elements) != count for grid in grids) or count < 2:
        raise NotApplicableError(f"the grids of {kernel.name} differ or have one axis")
    sizes = [unused(f"n_programs_{axis}", source.names) for axis in range(count - 1)]
    program = unused("program", source.names)
    indices = [unused(f"program_{axis}", source.names) for axis in range(count)]
    edits: Edits = [(call, instead(indices[axis])) for axis, calls in found.items() for call in calls if axis < count]
    for axis, name in enumerate(sizes):
        texts = [passable(launch, grid.elements[axis].value) for launch, grid in zip(launches, grids, strict=True)]
        edits += passed(source, kernel, name, texts, constexpr=False)
    for call in calls_of(kernel.node.body, "num_programs"):
        whole = f"(tl.num_programs(0) // ({' * '.join(sizes)}))"
        edits.append((call, instead([*sizes, whole][axis_of(call)])))
    edits.append((kernel.node.body, with_prologue(kernel, f"{program} = tl.program_id(0)", *_divided(program, indices, sizes))))
    for grid in grids:
        product = " * ".join(_factor(element.value) for element in grid.elements)
        edits.append((grid, instead(f"({product},)")))
    module = edited(source.module, edits)
    assert isinstance(module, cst.Module)
    return module


def _divided(program: str, indices: list[str], sizes: list[str]) -> list[str]:
    lines, rest = [], program
    for index, size in zip(indices, sizes, strict=False):
        lines.append(f"{index} = {rest} % {size}")
        rest = f"{rest} // {size}"
    return [*lines, f"{indices[-1]} = {rest}"]


def _factor(node: cst.BaseExpression) -> str:
    text = code(node)
    return text if isinstance(node, cst.Name | cst.Call | cst.Integer | cst.Subscript | cst.Attribute) else f"({text})"
