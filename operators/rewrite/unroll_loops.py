"""Repeats the body of a loop several times per round, or as often as it runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, unused, with_argument
from operators.rewrite.accesses import keyword, loops, positional, reads, tree_of, writes
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.parameters import Edits, tunable
from operators.source import Kernel, NotApplicableError, Source, code, find

DEFAULT_FACTOR, FACTORS = 2, [1, 2, 4]
MOST_ROUNDS = 32
"""Longer loops, written out, compile slowly and do not fit the instruction cache."""


class UnrollLoops(Rewrite):
    """A loop with few, constant rounds becomes `tl.static_range`; another gets `loop_unroll_factor=UNROLL`, a knob.

    Rounds keep their order. The compiler may then overlap loads of neighbouring rounds and keep what they share.
    """

    name = "unroll_loops"
    when = "Loop bodies are short: index arithmetic and the loop's own branch cost as much as the work."
    cites = "Triton documentation, tl.static_range and tl.range (loop_unroll_factor)."

    def sites(self, source: Source) -> Iterator[Site]:
        """Up to two sites per loop."""
        for kernel in source.kernels.values():
            for loop in loops(kernel):
                target = code(loop.target)
                if _is_constant(source, kernel, loop):
                    yield Site(f"the loop over {target} in {kernel.name} is written out", partial(_static, source, loop))
                else:
                    strategy = f"the loop over {target} in {kernel.name} does several rounds at once"
                    yield Site(strategy, partial(_partly, source, kernel, loop))


def _is_constant(source: Source, kernel: Kernel, loop: cst.For) -> bool:
    """Whether all bounds are constants of the compilation, the rounds few, and the counter no tensor for anyone."""
    call = cst.ensure_type(loop.iter, cst.Call)
    bounds = positional(call)
    if len(bounds) != len(call.args) or not bounds or any(reads(item) - kernel.constexprs - {"tl"} for item in bounds):
        return False
    counter = cst.ensure_type(loop.target, cst.Name)
    methods = find(kernel.node.body, cst.Attribute, m.Attribute(value=m.Name(counter.value)))
    if methods or counter.value in writes(loop.body):
        return False
    rounds = [_rounds(bounds, values) for values in _values(source, kernel)] or [_rounds(bounds, {})]
    return all(count is not None and 0 < count <= MOST_ROUNDS for count in rounds)


def _values(source: Source, kernel: Kernel) -> list[dict[str, int]]:
    """What each launch gives for constexprs, where it is a number."""
    found = []
    for launch in source.launches:
        if launch.kernel == kernel.name:
            given = {name: code(item.value).strip() for name, item in launch.arguments.items()}
            found.append({name: int(text) for name, text in given.items() if text.isdecimal()})
    return found


def _rounds(bounds: list[cst.BaseExpression], values: dict[str, int]) -> int | None:
    """How many rounds there are, None where that is not known."""
    numbers = []
    for bound in bounds:
        text = code(bound).strip()
        number = values.get(text) if not text.lstrip("-").isdecimal() else int(text)
        if number is None:
            return None
        numbers.append(number)
    return len(range(*numbers)) if len(numbers) < 3 or numbers[2] else None


def _static(source: Source, loop: cst.For) -> cst.Module:
    after = [node for node in ast.walk(tree_of(loop)) if isinstance(node, ast.Break | ast.Continue)]
    if after:
        raise NotApplicableError(f"the loop over {code(loop.target)} has a break or continue")
    module = edited(source.module, [(loop.iter, lambda call: call.with_changes(func=cst.parse_expression("tl.static_range")))])
    assert isinstance(module, cst.Module)
    return module


def _partly(source: Source, kernel: Kernel, loop: cst.For) -> cst.Module:
    if keyword(cst.ensure_type(loop.iter, cst.Call), "loop_unroll_factor") is not None:
        raise NotApplicableError(f"the loop over {code(loop.target)} in {kernel.name} is unrolled already")
    factor = unused("UNROLL", source.names)
    edits: Edits = [(loop.iter, partial(_unrolled, factor=factor))]
    return tunable(source, kernel, factor, (DEFAULT_FACTOR, FACTORS), edits)


def _unrolled(call: Any, factor: str) -> Any:
    return with_argument(call.with_changes(func=cst.parse_expression("tl.range")), "loop_unroll_factor", factor)
