"""Divides a long sum among programs: partial sums go to scratch memory, a second kernel adds them and finishes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, unused, with_argument, with_knob, with_parameter, without_comments
from operators.rewrite.accesses import places
from operators.rewrite.accumulating import Accumulation, accumulation
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.grids import axes, passable
from operators.rewrite.memory import bases
from operators.rewrite.parameters import Edits, only_launches
from operators.source import Kernel, Launch, NotApplicableError, Source, find, knob_names

DEFAULT_SPLIT, SPLITS = 4, [1, 2, 4, 8, 16]


class SplitLoop(Rewrite):
    """Split-K: `SPLIT` programs, a knob, share the rounds of a kernel's loop; its second half adds their float32 sums in order.

    For kernels that are one loop adding to one float32 accumulator. The second kernel is the old one with the loop over partial sums in
    its place, so whatever follows the loop is done once. The result does not depend on which program is first, but sums have another
    order than before.
    """

    name = "split_loop"
    exact = False
    when = "There are fewer tiles than multiprocessors and the summed dimension is long: small M and N, column sums."
    cites = "Osama et al., Stream-K, arXiv:2301.03598 (fixed-split); CUTLASS documentation, parallelized reductions."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per kernel with a loop of its own."""
        for kernel in source.kernels.values():
            if "program_id" in kernel.uses:
                strategy = f"several programs share the loop of {kernel.name}, a second kernel adds their sums"
                yield Site(strategy, partial(_rewrite, source, kernel))


def _rewrite(source: Source, kernel: Kernel) -> cst.Module:
    launches = only_launches(source, kernel)
    if any(name.startswith("SPLIT") for name in kernel.parameters):
        raise NotApplicableError(f"{kernel.name} is split already")
    parts = accumulation(kernel)
    used = set(places(source, kernel))
    axis = max(len(axes(launch).elements) for launch in launches)
    same = all(len(axes(launch).elements) == axis for launch in launches)
    if axis > 2 or max(used) >= axis or "num_programs" in kernel.uses or not same:
        raise NotApplicableError(f"the grid of {kernel.name} has no axis left")
    scratch, split = unused("partial_ptr", source.names), unused("SPLIT", source.names)
    knob, local = unused(split, knob_names(source.module)), unused("partial_sums", source.names)
    first = unused(f"{kernel.name}_partial", source.names)
    bodies = _bodies(parts, axis, scratch, split)
    summing = _kernel(kernel.node, bodies[0], scratch, split).with_changes(name=cst.Name(first))
    adding = _kernel(kernel.node, bodies[1], scratch, split).with_changes(leading_lines=[cst.EmptyLine(), cst.EmptyLine()])
    edits: Edits = [(kernel.node, lambda _: cst.FlattenSentinel([summing, adding]))]
    pointer = next((base for base in bases(kernel).values() if base), "")
    if not pointer or "torch" not in source.names:
        raise NotApplicableError(f"it is not clear through which parameters {kernel.name} accesses memory")
    wanted = (first, scratch, split, knob, local, pointer)
    for launch in launches:
        edits.append((_statement(launch), partial(_launched, launch=launch, parts=parts, names=wanted)))
    module: Any = edited(source.module, edits)
    return with_knob(module, knob, DEFAULT_SPLIT, SPLITS)


def _kernel(node: cst.FunctionDef, body: list[Any], scratch: str, split: str) -> cst.FunctionDef:
    node = node.with_changes(body=node.body.with_changes(body=body))
    return with_parameter(with_parameter(node, scratch, constexpr=False), split, constexpr=True)


def _bodies(parts: Accumulation, axis: int, scratch: str, split: str) -> tuple[list[Any], list[Any]]:
    """The statements of the kernel that sums and of the one that adds."""
    offsets = " + ".join(
        text
        for text in (
            [f"tl.arange(0, {parts.shape[0]})"]
            if len(parts.shape) == 1
            else [f"tl.arange(0, {parts.shape[0]})[:, None] * {parts.shape[1]}", f"tl.arange(0, {parts.shape[1]})[None, :]"]
        )
    )
    program = "tl.program_id(0)" if axis == 1 else "(tl.program_id(1) * tl.num_programs(0) + tl.program_id(0))"
    programs = "tl.num_programs(0)" if axis == 1 else "(tl.num_programs(0) * tl.num_programs(1))"
    size, place = " * ".join(parts.shape), "({} * {} + {}).to(tl.int64)"
    here = f"{scratch} + {place.format(f'tl.program_id({axis})', programs, program)} * ({size}) + {offsets}"
    rounds = [
        f"rounds = tl.cdiv(tl.cdiv({parts.high} - {parts.low}, {parts.step}), {split})",
        f"first_round = tl.program_id({axis}) * rounds",
        f"begin = {parts.low} + first_round * {parts.step}",
        f"end = min(begin + rounds * {parts.step}, {parts.high})",
        *(f"{name} += first_round * ({step})" for name, step in parts.moved.items()),
    ]
    call = cst.ensure_type(parts.loop.iter, cst.Call)
    options = [item for item in call.args if item.keyword is not None]
    bounds = [cst.Arg(cst.Name("begin")), cst.Arg(cst.Name("end")), cst.Arg(cst.parse_expression(parts.step)), *options]
    loop = parts.loop.with_changes(iter=call.with_changes(args=bounds))
    summing = [
        *parts.before,
        *map(cst.parse_statement, rounds),
        loop,
        cst.parse_statement(f"tl.store({here}, {parts.accumulator})"),
    ]
    there = f"{scratch} + {place.format('split', programs, program)} * ({size}) + {offsets}"
    add = cst.parse_statement(f"for split in range(0, {split}):\n    {parts.accumulator} += tl.load({there})\n")
    adding = [*map(without_comments, parts.before), add, *parts.after]
    return summing, adding


def _statement(launch: Launch) -> cst.SimpleStatementLine:
    for line in find(launch.function, cst.SimpleStatementLine):
        if (
            len(line.body) == 1
            and m.matches(line.body[0], m.Expr())
            and cst.ensure_type(line.body[0], cst.Expr).value is launch.call
        ):
            return line
    raise NotApplicableError(f"a launch of {launch.kernel} is no statement of its own")


def _launched(line: Any, launch: Launch, parts: Accumulation, names: tuple[str, str, str, str, str, str]) -> Any:
    """Scratch memory, the launch that sums, and the launch that was there."""
    first, scratch, split, knob, local, pointer = names
    tensor = launch.text(pointer)
    counts = [passable(launch, element.value) for element in axes(launch).elements]
    sizes = [item if item.isdecimal() else launch.text(item) for item in parts.shape]
    product = " * ".join(f"({item})" for item in [*counts, *sizes])
    memory = f'{local} = torch.empty(CONFIG["{knob}"] * {product}, dtype=torch.float32, device={tensor}.device)'
    old = line.body[0].value
    given = with_argument(with_argument(old, scratch, local), split, f'CONFIG["{knob}"]')
    grid = cst.parse_expression(f'{first}[({", ".join([*counts, ""]).strip()} CONFIG["{knob}"])]')
    summing = line.with_changes(body=[cst.Expr(given.with_changes(func=grid))], leading_lines=[])
    adding = line.with_changes(body=[cst.Expr(given)], leading_lines=[])
    allocation = cst.ensure_type(cst.parse_statement(memory), cst.SimpleStatementLine).with_changes(
        leading_lines=line.leading_lines
    )
    return cst.FlattenSentinel([allocation, without_comments(summing), adding])
