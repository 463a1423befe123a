"""Aligns two kernels by their loops: which segments of one may stand in the other's place."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.rewrite.accesses import reads, tree_of, writes
from operators.source import Kernel, code

DOCSTRING = m.SimpleStatementLine([m.Expr(m.SimpleString())])


@dataclass(frozen=True)
class Segment:
    """Statements of a kernel's top level that belong together.

    Attributes:
        label: What they are, for people.
        lines: The statements.
    """

    label: str
    lines: tuple[Any, ...]

    @property
    def needs(self) -> frozenset[str]:
        """Names it reads before it writes them, or may read so."""
        needed: frozenset[str] = frozenset()
        made: frozenset[str] = frozenset()
        for line in self.lines:
            grown = {code(item.target) for item in _augmented(line)}
            needed |= (reads(line) | grown) - made
            made |= writes(line) if not isinstance(line, cst.For | cst.While | cst.If) else frozenset()
        return needed - self._own

    @property
    def _own(self) -> frozenset[str]:
        """Names that a loop makes in each round before it reads them."""
        own: set[str] = set()
        for line in self.lines:
            if isinstance(line, cst.For):
                inner = Segment("", tuple(_block(line)))
                own |= {code(line.target)} | (set(writes(line.body)) - inner.needs)
        return frozenset(own)

    @property
    def makes(self) -> frozenset[str]:
        """Names it writes."""
        return frozenset().union(*(writes(line) for line in self.lines)) if self.lines else frozenset()

    @property
    def meaning(self) -> str:
        """Equal for equal statements, whatever their layout."""
        return "\n".join(ast.dump(tree_of(line)) for line in self.lines)


def _block(line: cst.For) -> Sequence[Any]:
    block: Any = line.body
    return list(block.body)


def _augmented(line: Any) -> Iterator[cst.AugAssign]:
    if isinstance(line, cst.SimpleStatementLine):
        yield from (item for item in line.body if isinstance(item, cst.AugAssign))


def segments(kernel: Kernel) -> list[Segment]:
    """A kernel's statements: its loops, and what stands before, between and after them."""
    lines: list[Any] = list(kernel.node.body.body)
    if lines and m.matches(lines[0], DOCSTRING):
        lines = lines[1:]
    found: list[Segment] = []
    between: list[Any] = []
    loops = sum(isinstance(line, cst.For | cst.While) for line in lines)
    for line in lines:
        if isinstance(line, cst.For | cst.While):
            found += [Segment(f"prologue {len(found) // 2 + 1}", tuple(between)), Segment(f"loop {len(found) // 2 + 1}", (line,))]
            between = []
        else:
            between.append(line)
    return [*found, Segment("epilogue" if loops else "body", tuple(between))]


def exchanges(mine: Kernel, theirs: Kernel) -> Iterator[tuple[Segment, Segment]]:
    """Pairs of segments that differ where the second kernel's may stand in the first: all names it reads are made before it, and it
    makes all that is read after it. Kernels without loops are aligned statement by statement instead."""
    first, second = segments(mine), segments(theirs)
    if len(first) != len(second):
        return
    if len(first) == 1:
        first, second = _statements(first[0]), _statements(second[0])
        twins = [
            (place, other) for place, item in enumerate(first) for other in second if item.makes and item.makes == other.makes
        ]
    else:
        twins = list(enumerate(second))
    for place, other in twins:
        old = first[place]
        known = frozenset(mine.parameters).union(*(item.makes for item in first[:place]))
        local = frozenset(theirs.parameters) | frozenset().union(*(item.makes for item in segments(theirs)))
        later = frozenset().union(*(item.needs for item in first[place + 1 :])) if first[place + 1 :] else frozenset()
        if (
            other.lines
            and old.meaning != other.meaning
            and not (other.needs & local) - known
            and later & old.makes <= other.makes | known
        ):
            yield old, other


def _statements(segment: Segment) -> list[Segment]:
    return [Segment(" ".join(code(line).split())[:40], (line,)) for line in segment.lines]
