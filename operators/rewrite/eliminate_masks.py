"""Drops a mask that only guards divisibility where a constexpr from the wrapper says that the size divides evenly."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from evo.syntax import expression_tree
from operators.edits import edited, unused, with_argument, with_parameter
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.covering import covers_exactly, operand
from operators.rewrite.guards import Cover, Definitions, Guard, guards, read_guard
from operators.source import Kernel, NotApplicableError, Source, code, find


class EliminateMasks(Rewrite):
    """`tl.load(p + offsets, mask=offsets < n)` also gets an unmasked path under `if EVEN_N`, with `EVEN_N = n % BLOCK == 0`.

    Unmasked accesses can be wide and need no predicates. The masked path stays, so every shape remains correct.
    """

    name = "eliminate_masks"
    when = "Sizes are multiples of the tile in the cases that matter."
    cites = "Triton's own specialisation on divisibility by 16, taken further to the tile; TorchInductor drops such masks too."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per kernel, bound and block."""
        for kernel in source.kernels.values():
            seen: set[tuple[str, str]] = set()
            for guard in guards(kernel):
                if (guard.bound, guard.block) not in seen and _flag(guard) not in kernel.parameters:
                    seen.add((guard.bound, guard.block))
                    strategy = f"{kernel.name} skips the mask {guard.bound} where {guard.block} divides it"
                    yield Site(strategy, partial(_eliminate, source, kernel, guard))


def _flag(guard: Guard) -> str:
    return f"EVEN_{guard.bound.upper()}"


def _eliminate(source: Source, kernel: Kernel, guard: Guard) -> cst.Module:
    launches = source.launches_of(kernel)
    flag = unused(_flag(guard), source.names)
    covers = {other.cover for other in guards(kernel) if (other.bound, other.block) == (guard.bound, guard.block)}
    edits: list[tuple[cst.CSTNode, Any]] = []
    for launch in launches:
        if Cover.PROGRAM in covers and not covers_exactly(launch, kernel, guard):
            raise NotApplicableError(f"the grid of {kernel.name} may be larger than the tiles of {guard.bound}")
        even = f"{operand(launch.text(guard.bound))} % {operand(launch.text(guard.block))} == 0"
        edits.append((launch.call, lambda call, even=even: with_argument(call, flag, even)))
    body = _Paths(kernel, guard, flag)
    new = kernel.node.visit(body)
    if not body.count:
        raise NotApplicableError(f"no load or store of {kernel.name} is masked by {ast.unparse(guard.compare)} alone")
    assert isinstance(new, cst.FunctionDef)
    edits.append((kernel.node, lambda _: with_parameter(new, flag, constexpr=True)))
    module = edited(source.module, edits)
    assert isinstance(module, cst.Module)
    return module


class _Paths(cst.CSTTransformer):
    """Gives every run of statements that access memory under the guard a second path without it."""

    def __init__(self, kernel: Kernel, guard: Guard, flag: str) -> None:
        super().__init__()
        self._kernel, self._guard, self._flag = kernel, guard, flag
        self._definitions = Definitions(kernel)
        self.count = 0

    def leave_IndentedBlock(  # noqa: N802 - libcst's name
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        body: list[Any] = []
        run: list[tuple[Any, Any]] = []
        lines: list[Any] = list(updated_node.body)
        for line in lines:
            unmasked = self._unmasked(line) if isinstance(line, cst.SimpleStatementLine) else None
            if unmasked is not None and run and line.leading_lines:  # a comment or blank line begins a new group
                body, run = [*body, self._branch(run)], []
            if unmasked is not None:
                run.append((line, unmasked))
                continue
            body, run = [*body, *([self._branch(run)] if run else []), line], []
        return updated_node.with_changes(body=[*body, *([self._branch(run)] if run else [])])

    def _branch(self, run: Sequence[tuple[Any, Any]]) -> cst.If:
        self.count += len(run)
        masked = [line.with_changes(leading_lines=[]) for line, _ in run]
        plain = [line.with_changes(leading_lines=[], trailing_whitespace=cst.TrailingWhitespace()) for _, line in run]
        test = cst.parse_expression(self._flag)
        branch = cst.If(test, cst.IndentedBlock(plain), cst.Else(cst.IndentedBlock(masked)))
        return branch.with_changes(leading_lines=run[0][0].leading_lines)

    def _unmasked(self, line: cst.SimpleStatementLine) -> cst.SimpleStatementLine | None:
        access = m.Call(func=m.Attribute(m.Name("tl"), m.Name("load") | m.Name("store")))
        edits: list[tuple[cst.CSTNode, Any]] = []
        for call in find(line, cst.Call, access):
            mask = next((a for a in call.args if a.keyword is not None and a.keyword.value == "mask"), None)
            rest = None if mask is None else self._rest(expression_tree(code(mask.value).strip()))
            if rest is not None:
                edits.append((call, lambda node, rest=rest: _with_mask(node, rest)))
        return edited(line, edits) if edits else None

    def _rest(self, node: ast.expr) -> list[str] | None:
        """The conjuncts of a mask besides the guard, None where it does not contain the guard."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
            sides = [self._rest(node.left), self._rest(node.right)]
            if sides == [None, None]:
                return None
            texts = [[ast.unparse(x)] if side is None else side for x, side in zip((node.left, node.right), sides, strict=True)]
            return texts[0] + texts[1]
        guard = read_guard(node, self._kernel, self._definitions)
        if guard is not None:
            return [] if (guard.bound, guard.block) == (self._guard.bound, self._guard.block) else None
        value = self._definitions.step(node)
        if value is node:
            return None
        rest = self._rest(value)  # behind a subscript, what remains would have another shape
        return rest if rest == [] or isinstance(node, ast.Name) else None


def _with_mask(call: cst.Call, rest: list[str]) -> cst.Call:
    dropped = () if rest else ("mask", "other")
    kept = [a for a in call.args if a.keyword is None or a.keyword.value not in dropped]
    kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    if rest:
        text = rest[0] if len(rest) == 1 else " & ".join(f"({item})" if " " in item else item for item in rest)
        mask = cst.parse_expression(text)
        kept = [a.with_changes(value=mask) if a.keyword is not None and a.keyword.value == "mask" else a for a in kept]
    return call.with_changes(args=kept)
