"""Makes two kernels of one that adds up in a loop: the first leaves partial sums in scratch memory, the second adds them and finishes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, unused, with_argument, with_knob, with_parameter, without_comments
from operators.rewrite.accesses import places
from operators.rewrite.accumulating import Accumulation, accumulation
from operators.rewrite.grids import passable, sizes
from operators.rewrite.memory import bases
from operators.rewrite.parameters import Edits, only_launches
from operators.source import Kernel, Launch, NotApplicableError, Source, find, knob_names

LOCAL = frozenset({"rounds", "rounds_each", "first_round", "last_round", "begin", "end", "at", "stop", "split", "stream"})
"""Names that divided kernels assign."""


@dataclass(frozen=True)
class Summing:
    """A kernel that is one loop adding to one accumulator, and the names that dividing it takes.

    Attributes:
        source, kernel, launches: What is rewritten.
        parts: The kernel, read.
        axes: How many axes its grid has, one or two.
        scratch, share, knob: Parameter for partial sums, parameter for how many programs share a loop, and its knob.
    """

    source: Source
    kernel: Kernel
    launches: tuple[Launch, ...]
    parts: Accumulation
    axes: int
    scratch: str
    share: str
    knob: str

    @property
    def tile(self) -> str:
        """Which tile a program of the old grid makes."""
        return "tl.program_id(0)" if self.axes == 1 else "(tl.program_id(1) * tl.num_programs(0) + tl.program_id(0))"

    @property
    def tiles(self) -> str:
        """How many tiles the old grid has, in a kernel that has it."""
        return "tl.num_programs(0)" if self.axes == 1 else "(tl.num_programs(0) * tl.num_programs(1))"

    @property
    def size(self) -> str:
        """Elements of the accumulator."""
        return " * ".join(self.parts.shape)

    def at(self, slot: str) -> str:
        """The pointers to a slot of scratch memory, as wide as the accumulator."""
        shape = self.parts.shape
        offsets = f"tl.arange(0, {shape[0]})"
        if len(shape) == 2:
            offsets = f"{offsets}[:, None] * {shape[1]} + tl.arange(0, {shape[1]})[None, :]"
        return f"{self.scratch} + ({slot}).to(tl.int64) * ({self.size}) + {offsets}"

    def loop(self, low: str, high: str) -> Any:
        """The loop between other bounds, which are multiples of its step away from its own."""
        call = cst.ensure_type(self.parts.loop.iter, cst.Call)
        options = [item for item in call.args if item.keyword is not None]
        bounds = [cst.Arg(cst.parse_expression(text)) for text in (low, high, self.parts.step)]
        return self.parts.loop.with_changes(iter=call.with_changes(args=[*bounds, *options]))


def summing(source: Source, kernel: Kernel, share: str) -> Summing:
    """Reads a kernel that can be divided; raises NotApplicableError where it cannot."""
    launches = only_launches(source, kernel)
    if any(name.startswith(("SPLIT", "STREAMS")) for name in kernel.parameters):
        raise NotApplicableError(f"{kernel.name} is divided already")
    if LOCAL & {node.value for node in find(kernel.node, cst.Name)}:
        raise NotApplicableError(f"{kernel.name} uses names that dividing it needs")
    parts = accumulation(kernel)
    used = set(places(source, kernel))
    count = max(len(sizes(launch)) for launch in launches)
    same = all(len(sizes(launch)) == count for launch in launches)
    if count > 2 or not used or max(used) >= count or "num_programs" in kernel.uses or not same:
        raise NotApplicableError(f"the grid of {kernel.name} has no axis left")
    wanted = unused(share, source.names)
    knob = unused(wanted, knob_names(source.module))
    return Summing(source, kernel, launches, parts, count, unused("partial_ptr", source.names), wanted, knob)


def divided(
    work: Summing,
    bodies: tuple[list[Any], list[Any]],
    memory: str,
    grid: str,
    choices: tuple[int, list[int]],
    given: Mapping[str, str] | None = None,
) -> cst.Module:
    """The module with two kernels.

    Args:
        work: The old kernel.
        bodies: The statements of the kernel that sums, and those that stand where the loop was in the one that finishes.
        memory: How scratch memory is made: ``{tiles}``, ``{axes}`` and ``{across}`` (sizes of the old grid, and of its axis 0),
            ``{size}`` (of the accumulator), ``{share}`` (the knob) and ``{options}`` (type and device) are filled in.
        grid: The grid of the first, filled in likewise.
        choices: Default and choices of the knob.
        given: Further parameters of the first → what launches pass, filled in likewise.
    """
    kernel, parts, source = work.kernel, work.parts, work.source
    name = unused(f"{kernel.name}_partial", source.names)
    adding = [*map(without_comments, parts.before), *bodies[1], *parts.after]
    one = _kernel(work, bodies[0]).with_changes(name=cst.Name(name))
    for parameter in given or ():
        one = with_parameter(one, parameter, constexpr=False)
    two = _kernel(work, adding).with_changes(leading_lines=[cst.EmptyLine(), cst.EmptyLine()])
    edits: Edits = [(kernel.node, lambda _: cst.FlattenSentinel([one, two]))]
    for launch in work.launches:
        edits.append(
            (statement_of(launch), partial(_launched, work=work, launch=launch, texts=(name, memory, grid), more=given or {}))
        )
    return with_knob(edited(source.module, edits), work.knob, *choices)


def _kernel(work: Summing, body: list[Any]) -> cst.FunctionDef:
    node = work.kernel.node
    node = node.with_changes(body=node.body.with_changes(body=body))
    return with_parameter(with_parameter(node, work.scratch, constexpr=False), work.share, constexpr=True)


def statement_of(launch: Launch) -> cst.SimpleStatementLine:
    """The statement that is a launch and nothing else."""
    for line in find(launch.function, cst.SimpleStatementLine):
        alone = len(line.body) == 1 and m.matches(line.body[0], m.Expr())
        if alone and cst.ensure_type(line.body[0], cst.Expr).value is launch.call:
            return line
    raise NotApplicableError(f"a launch of {launch.kernel} is no statement of its own")


def _launched(line: Any, work: Summing, launch: Launch, texts: tuple[str, str, str], more: Mapping[str, str]) -> Any:
    """Scratch memory, the launch that sums, and the launch that was there."""
    pointer = next((base for base in bases(work.kernel).values() if base), "")
    if not pointer or "torch" not in work.source.names:
        raise NotApplicableError(f"it is not clear through which parameters {work.kernel.name} accesses memory")
    counts = [passable(launch, size) for size in sizes(launch)]
    extents = [item if item.isdecimal() else launch.text(item) for item in work.parts.shape]
    share = f'CONFIG["{work.knob}"]'
    name, memory, grid = texts
    known = {
        "share": share,
        "across": counts[0],
        "axes": ", ".join(counts),
        "tiles": " * ".join(f"({item})" for item in counts),
        "size": " * ".join(f"({item})" for item in extents),
        "options": f"dtype=torch.float32, device={launch.text(pointer)}.device",
    }
    local = unused("partial_sums", work.source.names)
    old = line.body[0].value
    given = with_argument(with_argument(old, work.scratch, local), work.share, share)
    call = given.with_changes(func=cst.parse_expression(f"{name}[{grid.format(**known)}]"))
    for parameter, text in more.items():
        call = with_argument(call, parameter, text.format(**known))
    one = line.with_changes(body=[cst.Expr(call)])
    two = line.with_changes(body=[cst.Expr(given)], leading_lines=[])
    allocation = cst.ensure_type(cst.parse_statement(f"{local} = {memory.format(**known)}"), cst.SimpleStatementLine)
    return cst.FlattenSentinel([allocation.with_changes(leading_lines=line.leading_lines), without_comments(one), two])
