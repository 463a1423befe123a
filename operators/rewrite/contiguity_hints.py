"""Says of a tile's offsets that they are contiguous and begin at a multiple of the tile, where that is so."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited
from operators.rewrite.accesses import calls_of, derived, reads, writes
from operators.rewrite.base import Rewrite, Site
from operators.source import Kernel, NotApplicableError, Source, code, find

ARANGE = m.Call(func=m.Attribute(m.Name("tl"), m.Name("arange")), args=[m.Arg(m.Integer("0")), m.Arg(m.Name())])

WIDE = ("arange", "zeros", "full", "make_block_ptr", "make_tensor_descriptor")


class ContiguityHints(Rewrite):
    """`pid * BLOCK + tl.arange(0, BLOCK)` gets `tl.max_contiguous(tl.multiple_of(…, BLOCK), BLOCK)` around it.

    It says what is true of such offsets whatever `pid` is. The compiler finds it by itself unless something it does not look through
    stands between, a swizzle or a loop for example.
    """

    name = "contiguity_hints"
    when = "Loads are narrower than 16 bytes though offsets are contiguous, because tile indices come out of control flow."
    cites = "Triton documentation, tl.multiple_of and tl.max_contiguous; Triton's matmul operator used both."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per kernel."""
        launched = {launch.kernel for launch in source.launches}  # parameters of other functions may be tiles themselves
        found = [(source.kernels[name], offsets) for name in sorted(launched) if (offsets := _offsets(source.kernels[name]))]
        if not found:
            raise NotApplicableError("no assignment has the form index * BLOCK + tl.arange(0, BLOCK)")
        for kernel, offsets in found:
            strategy = f"{kernel.name} says that its offsets are contiguous"
            yield Site(strategy, partial(_rewrite, source, offsets))


def _offsets(kernel: Kernel) -> list[tuple[cst.BaseExpression, str]]:
    """Right-hand sides that are such offsets, with their tile."""
    found, wide = [], derived(kernel, _tiles(kernel))
    for line in find(kernel.node.body, cst.Assign, m.Assign(value=m.BinaryOperation(operator=m.Add()))):
        value = cst.ensure_type(line.value, cst.BinaryOperation)
        for offset, tile in ((value.left, value.right), (value.right, value.left)):
            if m.matches(tile, ARANGE):
                block = code(cst.ensure_type(tile, cst.Call).args[1].value)
                if block in kernel.constexprs and _is_multiple(offset, block) and not reads(offset) & wide:
                    found.append((line.value, block))
    return found


def _tiles(kernel: Kernel) -> set[str]:
    """Names that are given a value with several elements, at first hand."""
    lines = find(kernel.node.body, cst.Assign)
    return {name for line in lines if calls_of(line.value, *WIDE) for name in writes(line)}


def _is_multiple(node: cst.BaseExpression, block: str) -> bool:
    """Whether a scalar is written as a product with the tile."""
    if not m.matches(node, m.BinaryOperation(operator=m.Multiply())):
        return False
    product = cst.ensure_type(node, cst.BinaryOperation)
    sides = [code(product.left).strip(), code(product.right).strip()]
    return block in sides and not find(node, cst.Call, m.Call(func=m.Attribute(attr=m.Name("arange"))))


def _rewrite(source: Source, offsets: list[tuple[cst.BaseExpression, str]]) -> cst.Module:
    module = edited(source.module, [(node, partial(_hinted, block=block)) for node, block in offsets])
    assert isinstance(module, cst.Module)
    return module


def _hinted(node: Any, block: str) -> Any:
    text = code(node.with_changes(lpar=[], rpar=[]))
    return cst.parse_expression(f"tl.max_contiguous(tl.multiple_of({text}, {block}), {block})")
