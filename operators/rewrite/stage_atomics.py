"""Replaces atomic additions of all programs to the same elements by partial results in memory, which a second kernel adds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst

from operators.edits import edited, instead, unused, with_argument, with_knob, with_parameter, without_comments
from operators.rewrite.accesses import calls_of, keyword, positional, reads, writes
from operators.rewrite.additions import Addition, addition
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.dividing import statement_of
from operators.rewrite.grids import passable, sizes
from operators.rewrite.parameters import Edits, only_launches
from operators.source import Kernel, Launch, NotApplicableError, Source, code, find, knob_names

DEFAULT_GROUPS, GROUPS = 1, [1, 4, 16, 64]
ROWS = 64
"""Partial results that the second kernel adds at a time."""


class StageAtomics(Rewrite):
    """`tl.atomic_add(p, x)` becomes a store to scratch memory, and a second kernel adds what programs left there.

    For additions to an address that does not depend on one axis of the grid: that is where programs wait for each other. `GROUPS`
    programs, a knob, share the second stage and add their results atomically; with one, results are the same in each run.
    """

    name = "stage_atomics"
    exact = False
    when = "Many programs add to the same few elements: losses, counts, gradients of weights; or runs must repeat bit by bit."
    cites = "Harris, Optimizing parallel reduction in CUDA (2007), two-stage reductions; CUB's DeviceReduce."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per atomic addition."""
        for kernel in source.kernels.values():
            for call in calls_of(kernel.node.body, "atomic_add"):
                strategy = (
                    f"{kernel.name} leaves in memory what it added to {code(call.args[0].value)}, for a second kernel to add"
                )
                yield Site(strategy, partial(_rewrite, source, kernel, call))


def _rewrite(source: Source, kernel: Kernel, call: cst.Call) -> cst.Module:
    launches = only_launches(source, kernel)
    found = addition(source, kernel, call)
    counts = {len(sizes(launch)) for launch in launches}
    if len(counts) != 1 or max(counts) > 2 or "num_programs" in kernel.uses or "torch" not in source.names:
        raise NotApplicableError(f"the grids of {kernel.name} have not one or two axes")
    scratch, groups = unused("partial_ptr", source.names), unused("GROUPS", source.names)
    knob, local = unused(groups, knob_names(source.module)), unused("partial_results", source.names)
    count, second = unused("n_partial", source.names), unused(f"{kernel.name}_add", source.names)
    edits: Edits = [(found.line, lambda line: _stored(line, found, max(counts), scratch))]
    module: Any = edited(source.module, edits)
    node = next(item for item in find(module, cst.FunctionDef) if item.name.value == kernel.name)
    adding = _adding(kernel, found, (second, scratch, count, groups))
    both = cst.FlattenSentinel([with_parameter(node, scratch, constexpr=False), adding])
    replaced: Edits = [(kernel.node, lambda _: both)]
    names = (second, scratch, count, groups, knob, local)
    replaced += [(statement_of(item), partial(_launched, launch=item, found=found, names=names)) for item in launches]
    return with_knob(edited(source.module, replaced), knob, DEFAULT_GROUPS, GROUPS)


def _stored(line: Any, found: Addition, count: int, scratch: str) -> Any:
    """The store in place of the addition."""
    call = line.body[0].value
    given = positional(call)
    mask = given[2] if len(given) == 3 else keyword(call, "mask")
    value = code(given[1]) if mask is None else f"tl.where({code(mask)}, {code(given[1])}, 0)"
    other = "tl.program_id(0)" if count == 1 else "(tl.program_id(1) * tl.num_programs(0) + tl.program_id(0))"
    if found.axis is not None:
        summed = 1 - found.axis
        other = f"(tl.program_id({found.axis}) * tl.num_programs({summed}) + tl.program_id({summed}))"
    tile = f" * {found.extent} + tl.arange(0, {found.extent})" if found.extent else ""
    return line.with_changes(body=[cst.Expr(cst.parse_expression(f"tl.store({scratch} + {other}.to(tl.int64){tile}, {value})"))])


def _adding(kernel: Kernel, found: Addition, names: tuple[str, str, str, str]) -> cst.FunctionDef:
    """The second kernel: what the address needs of the first, and a loop over the partial results."""
    second, scratch, count, groups = names
    given = positional(found.call)
    wanted = frozenset().union(*(reads(item) for place, item in enumerate(given) if place != 1))
    wanted |= reads(keyword(found.call, "mask")) if keyword(found.call, "mask") is not None else frozenset()  # type: ignore[arg-type]
    kept: list[Any] = []
    for line in reversed(kernel.node.body.body[: list(kernel.node.body.body).index(found.line)]):
        if writes(line) & wanted:
            if not isinstance(line, cst.SimpleStatementLine):
                raise NotApplicableError(f"{kernel.name} computes the address in a branch or loop")
            wanted |= reads(line)
            kept.insert(
                0, edited(without_comments(line), [(c, instead("tl.program_id(0)")) for c in calls_of(line, "program_id")])
            )
    tile = f"tl.arange(0, {found.extent})" if found.extent else ""
    place = f"{scratch} + tl.program_id(0).to(tl.int64) * {count} + partials"
    load = f"tl.load({place}, mask=partials < {count}, other=0)"
    if tile:
        place = f"{scratch} + (tl.program_id(0).to(tl.int64) * {count} + partials[:, None]) * {found.extent} + {tile}[None, :]"
        load = f"tl.load({place}, mask=partials[:, None] < {count}, other=0)"
    zero = f"tl.zeros([{found.extent}], {scratch}.dtype.element_ty)" if tile else f"tl.full([], 0, {scratch}.dtype.element_ty)"
    loop = f"""for first in range(tl.program_id(1) * {ROWS}, {count}, {groups} * {ROWS}):
    partials = first + tl.arange(0, {ROWS})
    added += tl.sum({load}, axis=0).to(added.dtype)
"""
    final = edited(found.line, [(given[1], instead("added"))])
    body = [*kept, cst.parse_statement(f"added = {zero}"), cst.parse_statement(loop), final]
    node = kernel.node.with_changes(
        name=cst.Name(second), body=cst.IndentedBlock(body), leading_lines=[cst.EmptyLine(), cst.EmptyLine()]
    )
    node = with_parameter(with_parameter(node, scratch, constexpr=False), count, constexpr=False)
    return with_parameter(node, groups, constexpr=True)


def _launched(line: Any, launch: Launch, found: Addition, names: tuple[str, str, str, str, str, str]) -> Any:
    """Scratch memory, the launch that was there, and the launch that adds."""
    second, scratch, count, groups, knob, local = names
    counts = [passable(launch, size) for size in sizes(launch)]
    kept = "1" if found.axis is None else counts[found.axis]
    reduced = " * ".join(f"({c})" for axis, c in enumerate(counts) if axis != found.axis)
    size = "" if not found.extent else f" * ({found.extent if found.extent.isdecimal() else launch.text(found.extent)})"
    tensor = launch.text(found.base)
    reduced = reduced if " * " in reduced else reduced[1:-1]
    memory = f"{local} = torch.empty({kept} * ({reduced}){size}, dtype={tensor}.dtype, device={tensor}.device)"
    old = with_argument(line.body[0].value, scratch, local)
    call = with_argument(with_argument(old, count, reduced), groups, f'CONFIG["{knob}"]')
    call = call.with_changes(func=cst.parse_expression(f'{second}[({kept}, CONFIG["{knob}"])]'))
    allocation = cst.ensure_type(cst.parse_statement(memory), cst.SimpleStatementLine).with_changes(
        leading_lines=line.leading_lines
    )
    adding = without_comments(line).with_changes(body=[cst.Expr(call)])
    return cst.FlattenSentinel([allocation, line.with_changes(body=[cst.Expr(old)], leading_lines=[]), adding])
