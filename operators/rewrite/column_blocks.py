"""The body of a kernel over a whole row as loops over blocks of columns, with running reductions."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, instead, replaced, unused, without_comments
from operators.rewrite.dataflow import NEUTRAL, Line, check_memory, closure, connect, inlined, is_wide, line
from operators.rewrite.guards import Guard, arange_block
from operators.source import Kernel, NotApplicableError, argument, called, code, find


@dataclass(frozen=True)
class Online:
    """A sum of exponentials that shares the pass of its maximum: `scale` is the exponential that rescales it."""

    maximum: int
    scale: str


class ColumnBlocks:
    """One kernel on its way from a whole row to blocks.

    Args:
        kernel: It.
        guard: What keeps its block of columns inside the row.
        names: Those of the module.
    """

    def __init__(self, kernel: Kernel, guard: Guard, names: frozenset[str]) -> None:
        self._taken = set(names)
        self._guard = guard
        self._start = self._new("start")
        self._shape = ""
        self.lines = self._hoisted(kernel)
        connect(self.lines, lambda node: arange_block(node) == guard.block)
        check_memory(self.lines)
        self._online: dict[int, Online] = {}
        self._emitted: set[int] = set()
        for index, item in enumerate(self.lines):
            if item.reduction:
                self._check_reduction(item)
                self._fuse(index, item)
        if self._online:
            self._relevel()
        self._check_names()

    def _new(self, wanted: str) -> str:
        name = unused(wanted, self._taken)
        self._taken.add(name)
        return name

    def _hoisted(self, kernel: Kernel) -> list[Line]:
        """The body with every reduction on a line of its own."""
        lines: list[Line] = []
        columns = [node for node in ast.walk(kernel.tree) if arange_block(node) == self._guard.block]
        if len(columns) != 1:
            raise NotApplicableError(f"{kernel.name} makes its columns in {len(columns)} places")
        pattern = m.Call(func=m.Attribute(m.Name("tl"), m.OneOf(*(m.Name(kind) for kind in NEUTRAL))))
        for node in kernel.node.body.body:
            while isinstance(node, cst.SimpleStatementLine):
                calls = [call for call in find(node, cst.Call, pattern) if len(find(call, cst.Call, pattern)) == 1]
                value = node.body[0].value if isinstance(node.body[0], cst.Assign) else None
                calls = [call for call in calls if call is not value]
                if not calls:
                    break
                call = calls[0]
                name = self._new(f"row_{cst.ensure_type(call.func, cst.Attribute).attr.value}")
                statement = cst.ensure_type(cst.parse_statement(f"{name} = {code(call)}"), cst.SimpleStatementLine)
                lines.append(line(statement.with_changes(leading_lines=node.leading_lines)))
                node = edited(node.with_changes(leading_lines=[]), [(call, instead(name))])
            lines.append(line(node))
        return lines

    def _check_reduction(self, item: Line) -> None:
        call = item.value
        assert isinstance(call, ast.Call)
        axis, keep = argument(call, 1, "axis"), argument(call, 99, "keep_dims")
        extra = {keyword.arg for keyword in call.keywords} - {"axis", "keep_dims", "input"}
        if extra or not is_wide(call.args[0], item.sources, self.lines):
            raise NotApplicableError(f"{ast.unparse(call)} is not certain to be a plain reduction in float32")
        if keep is None and (axis is None or ast.unparse(axis) == "0"):
            return
        rows = {arange_block(n) for other in self.lines for n in ast.walk(other.tree) if isinstance(n, ast.Call)}
        rows -= {"", self._guard.block}
        if keep is None or axis is None or ast.unparse(axis) != "1" or len(rows) != 1:
            raise NotApplicableError(f"{ast.unparse(call)} does not reduce rows to a column")
        self._shape = rows.pop()

    def _fuse(self, index: int, item: Line) -> None:
        """Notes a sum of `exp(tile - maximum)`, where the maximum is that of the same tile."""
        assert isinstance(item.value, ast.Call)
        term = inlined(item.value.args[0], item.sources, self.lines)
        if called(term) == "where" and isinstance(term, ast.Call) and ast.unparse(term.args[2]) in ("0.0", "0"):
            term = term.args[1]
        if item.reduction != "sum" or not isinstance(term, ast.Call) or called(term) not in ("exp", "exp2"):
            return
        power = term.args[0]
        difference = power.left if isinstance(power, ast.BinOp) and isinstance(power.op, ast.Mult) else power
        if not isinstance(difference, ast.BinOp) or not isinstance(difference.op, ast.Sub):
            return
        for source, other in enumerate(self.lines[:index]):
            if other.reduction == "max" and ast.unparse(difference.right) == f"{other.name}__{source}":
                assert isinstance(other.value, ast.Call)
                tile = inlined(other.value.args[0], other.sources, self.lines)
                factor = f" * {ast.unparse(power.right)}" if isinstance(power, ast.BinOp) and power is not difference else ""
                alike = ast.dump(tile) == ast.dump(difference.left) and "__" not in factor
                if alike and not self._claimed(source) and self._available(item, source):
                    exponent = f"({{old}} - {{shift}}){factor}" if factor else "{old} - {shift}"
                    self._online[index] = Online(source, f"{ast.unparse(term.func)}({exponent})")

    def _available(self, item: Line, maximum: int) -> bool:
        """Whether all that the sum needs is known in the pass of the maximum."""
        tiles = closure(self.lines, [s for s in item.sources.values() if self.lines[s].tile])
        needed = {s for i in tiles for s in self.lines[i].sources.values()} | set(item.sources.values())
        return all(self.lines[s].tile or s == maximum or self.lines[s].level < self.lines[maximum].level for s in needed)

    def _claimed(self, maximum: int) -> bool:
        return any(online.maximum == maximum for online in self._online.values())

    def _relevel(self) -> None:
        for index, item in enumerate(self.lines):
            item.level = max((self.lines[s].level for s in item.sources.values()), default=0) + bool(item.reduction)
            if index in self._online:
                item.level = self.lines[self._online[index].maximum].level

    def body(self) -> list[Any]:
        """The statements of the new kernel."""
        result: list[Any] = []
        passes = max(item.level for item in self.lines)
        for level in range(passes + 1):
            result += [item.node for item in self.lines if not item.tile and not item.reduction and item.level == level]
            reductions = [i for i, item in enumerate(self.lines) if item.reduction and item.level == level + 1]
            result += [self._initial(self.lines[i]) for i in reductions]
            if reductions:
                result.append(self._reducing_loop(reductions))
        stores = [i for i, item in enumerate(self.lines) if item.tile and item.stores]
        if stores:
            inside = closure(self.lines, stores)
            result.append(self._loop([self._blocked(i) for i in inside]))
        return result

    def _initial(self, item: Line) -> Any:
        value = NEUTRAL[item.reduction]
        value = f"tl.full([{self._shape}, 1], {value}, tl.float32)" if self._shape else value
        return cst.parse_statement(f"{item.name} = {value}")

    def _reducing_loop(self, reductions: list[int]) -> Any:
        maxima = {online.maximum for index, online in self._online.items() if index in reductions}
        plain = [i for i in reductions if i not in self._online]
        inside = closure(self.lines, [s for i in plain for s in self.lines[i].sources.values() if self.lines[s].tile])
        body = [self._blocked(i) for i in inside]
        late: list[Any] = []
        done = set(inside)
        for index in plain:
            item = self.lines[index]
            call = ast.unparse(item.value) if item.value else ""
            if index not in maxima:
                running = f"{item.name} + {call}" if item.reduction == "sum" else f"tl.{item.reduction}imum({item.name}, {call})"
                body.append(
                    item.node.with_changes(
                        body=cst.ensure_type(_parsed(f"{item.name} = {running}"), cst.SimpleStatementLine).body
                    )
                )
                continue
            new, shift = self._new(f"new_{item.name}"), self._new(f"shift_{item.name}")
            body.append(_parsed(f"{new} = tl.maximum({item.name}, {call})").with_changes(leading_lines=item.node.leading_lines))
            comment = cst.EmptyLine(comment=cst.Comment("# A row that has only -inf so far must not turn into nan."))
            body.append(_parsed(f'{shift} = tl.where({new} == float("-inf"), 0.0, {new})').with_changes(leading_lines=[comment]))
            late += self._online_sums(index, shift, done)
            late.append(_parsed(f"{item.name} = {new}"))
        return self._loop(body + late)

    def _online_sums(self, maximum: int, shift: str, done: set[int]) -> list[Any]:
        result: list[Any] = []
        old = self.lines[maximum].name
        for index, online in self._online.items():
            if online.maximum == maximum:
                item = self.lines[index]
                more = closure(self.lines, [s for s in item.sources.values() if self.lines[s].tile])
                for step in [i for i in more if i not in done]:
                    node = self._blocked(step)
                    result.append(replaced(node, old, shift) if self.lines[step].sources.get(old) == maximum else node)
                    done.add(step)
                scale = online.scale.format(old=old, shift=shift)
                call = ast.unparse(item.value) if item.value else ""
                if item.sources.get(old) == maximum:
                    call = code(replaced(cst.parse_expression(call), old, shift))
                node = _parsed(f"{item.name} = {item.name} * {scale} + {call}")
                result.append(node.with_changes(leading_lines=item.node.leading_lines))
        return result

    def _check_names(self) -> None:
        """Refuses where a line that moves or repeats would read another value of a name than it did."""
        for name in {name for item in self.lines for name in item.writes}:
            writers = [item for item in self.lines if name in item.writes]
            kinds = {(item.tile, 0 if item.tile else item.level) for item in writers}
            early = any(item.tile and name in item.sources and self._stale(name, item) for item in self.lines)
            if len(kinds) > 1 or early:
                raise NotApplicableError(f"the kernel gives {name} several meanings")

    def _stale(self, name: str, item: Line) -> bool:
        source = item.sources[name]
        return not self.lines[source].tile and any(name in later.writes for later in self.lines[source + 1 :])

    def _blocked(self, index: int) -> Any:
        node, block = self.lines[index].node, self._guard.block
        value = self.lines[index].value
        if index in self._emitted:  # comments stand at the first copy only
            node = without_comments(node)
        self._emitted.add(index)
        columns, moved = f"tl.arange(0, {block})", f"{self._start} + tl.arange(0, {block})"
        if value is not None and arange_block(value) == block:
            return edited(node, [(node.body[0].value, instead(moved))])
        return replaced(node, columns, f"({moved})") if columns in ast.unparse(self.lines[index].tree) else node

    def _loop(self, body: list[Any]) -> Any:
        loop = cst.ensure_type(
            _parsed(f"for {self._start} in range(0, {self._guard.bound}, {self._guard.block}):\n    pass"), cst.For
        )
        return loop.with_changes(body=cst.IndentedBlock(body))


def _parsed(text: str) -> Any:
    return cst.parse_statement(text)
