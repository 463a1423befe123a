"""Lets few programs stay and walk over all rows or tiles, so that the loads of one row overlap the arithmetic of the last."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, instead, unused, with_argument, with_knob, with_parameter
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.grids import passable, single
from operators.rewrite.guards import Cover, guards
from operators.rewrite.memory import bases, check_order, stores
from operators.rewrite.repeating import EFFECTS, is_place, repeatable
from operators.source import Kernel, Launch, NotApplicableError, Source, called, code, find, knob_names

DEFAULT_PROGRAMS, PROGRAMS = 528, [132, 264, 528, 1056, 2112]
"""Multiples of the 132 multiprocessors of an H100 or H200."""
DEFAULT_STAGES, STAGES = 2, [1, 2, 3, 4]


class PersistentRows(Rewrite):
    """A kernel with one row or tile per program becomes a loop over them, which `num_stages` pipelines; the grid gets a limit.

    What does not depend on the row moves before the loop; loads that all rows share do so in a child of their own, as they hold
    registers. Every row is computed as before, so that results keep their bits.
    """

    name = "persistent_rows"
    when = "There are many more rows than multiprocessors, and rows share loads or are short."
    cites = "Triton tutorials 02-fused-softmax and 09-persistent-matmul."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per kernel that asks for its place in the grid, and one more where rows share loads."""
        for kernel in source.kernels.values():
            if "program_id" in kernel.uses:
                strategy = f"the programs of {kernel.name} stay and loop over its rows"
                yield Site(strategy, partial(_rewrite, source, kernel, shared=False))
                if _Body(kernel, shared=True).loads_once():
                    yield Site(f"{strategy}, loading once what rows share", partial(_rewrite, source, kernel, shared=True))


def _rewrite(source: Source, kernel: Kernel, *, shared: bool) -> cst.Module:
    source, kernel = repeatable(source, kernel)
    launches = source.launches_of(kernel)
    if len(find(source.module, cst.Name, m.Name(kernel.name))) != len(launches) + 1:
        raise NotApplicableError(f"{kernel.name} is used besides its plain launches")
    grids = [single(launch) for launch in launches]
    counts = [passable(launch, rows) for launch, rows in zip(launches, grids, strict=True)]
    if "cdiv" in kernel.uses and any(n.value not in ("0", "1") for rows in grids for n in find(rows, cst.Integer)):
        raise NotApplicableError(f"the grid of {kernel.name} has a literal tile size, which should become a knob first")
    for launch in launches:
        check_order(kernel, launch)
    tiled = any(guard.cover is Cover.PROGRAM for guard in guards(kernel))
    row, count = (unused(name, source.names) for name in (("tile", "n_tiles") if tiled else ("row_index", "n_rows")))
    known = next((p for p in kernel.parameters if _gives(kernel, launches, p, counts)), None)
    programs, knob = (unused(name, knob_names(source.module)) for name in ("PROGRAMS", "STAGES"))
    stages = unused("STAGES", source.names)
    steps = f"tl.range(tl.program_id(0), {known or count}, tl.num_programs(0), num_stages={stages})"
    body = _Body(kernel, shared=shared).looped(row, steps)
    edits: list[tuple[cst.CSTNode, Any]] = [(kernel.node.body, lambda block: block.with_changes(body=body))]
    for launch, rows, text in zip(launches, grids, counts, strict=True):
        edits.append((rows, instead(f'min({code(rows)}, CONFIG["{programs}"])')))
        if known is None:
            edits.append((launch.call, partial(with_argument, name=count, text=text)))
        edits.append((launch.call, partial(with_argument, name=stages, text=f'CONFIG["{knob}"]')))
    if known is None:
        edits.append((kernel.node, partial(with_parameter, name=count, constexpr=False)))
    edits.append((kernel.node, partial(with_parameter, name=stages, constexpr=True)))
    module = with_knob(edited(source.module, edits), programs, DEFAULT_PROGRAMS, PROGRAMS)
    return with_knob(module, knob, DEFAULT_STAGES, STAGES)


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _gives(kernel: Kernel, launches: tuple[Launch, ...], parameter: str, counts: list[str]) -> bool:
    given = [code(launch.arguments[parameter].value) for launch in launches if parameter in launch.arguments]
    return given == counts and parameter not in kernel.constexprs


class _Body:
    """The statements of a kernel, divided into those that all rows share and the others."""

    def __init__(self, kernel: Kernel, *, shared: bool) -> None:
        self._bases, self._shared = bases(kernel), shared
        self._stored = {base for call, base in self._bases.items() if stores(call)}
        self._lines: list[tuple[ast.stmt, Any]] = list(zip(kernel.tree.body, kernel.node.body.body, strict=False))
        written = [n.id for n in ast.walk(kernel.tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        self._once = {name for name in written if written.count(name) == 1}
        varying = set(written)
        self._outside: list[tuple[ast.stmt, Any]] = []
        for line, node in self._lines:
            assigned_to = (
                line.targets if isinstance(line, ast.Assign) else [line.target] if isinstance(line, ast.AnnAssign) else []
            )
            target = _name(assigned_to[0]) if len(assigned_to) == 1 else ""
            reads = {n.id for n in ast.walk(line) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
            docstring = isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)
            if docstring or (target in self._once and not reads & varying and all(map(self._pure, ast.walk(line)))):
                self._outside.append((line, node))
                varying -= {target}

    def _pure(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            return True
        if called(node) == "load":
            return self._shared and self._bases[node] != "" and not self._stored & {"", self._bases[node]}
        method = isinstance(node.func, ast.Attribute) and node.func.attr == "to"
        return method or _name(node.func) in ("min", "max") or (called(node) != "" and not called(node).startswith(EFFECTS))

    def loads_once(self) -> bool:
        """Whether a shared statement loads."""
        return any(called(node) == "load" for line, _ in self._outside for node in ast.walk(line))

    def looped(self, row: str, steps: str) -> list[Any]:
        """The statements of the new kernel."""
        inside = [item for item in self._lines if item not in self._outside]
        tensor, alias = self._asks_for_tensor(), None
        for item in [] if tensor else inside:
            if isinstance(item[0], ast.Assign) and is_place(item[0].value) and _name(item[0].targets[0]) in self._once:
                alias, row = item, _name(item[0].targets[0])
        block = cst.IndentedBlock(
            [_placed(node, row, tensor=tensor) for line, node in inside if alias is None or line is not alias[0]]
        )
        header = f"for {row} in {steps}:\n    pass"
        loop = cst.ensure_type(cst.parse_statement(header), cst.For)
        if alias is not None:  # comments of the name go to where it is given
            block = block.with_changes(header=alias[1].trailing_whitespace)
            loop = loop.with_changes(leading_lines=alias[1].leading_lines)
        return [*(node for _, node in self._outside), loop.with_changes(body=block)]

    def _asks_for_tensor(self) -> bool:
        """Whether a method is called on the index; Triton's interpreter counts loops in plain integers, which have none."""
        plain: set[str] = set()
        for line, _ in self._lines:
            for node in ast.walk(line):
                parts = list(ast.walk(node.value)) if isinstance(node, ast.Assign | ast.Attribute) else []
                index = any(is_place(n) or _name(n) in plain for n in parts)
                if index and all(is_place(n) for n in parts if isinstance(n, ast.Call)):
                    if isinstance(node, ast.Attribute) and not is_place(node.value):
                        return True
                    plain |= {_name(target) for target in node.targets} if isinstance(node, ast.Assign) else set()
        return False


def _placed(statement: Any, row: str, *, tensor: bool) -> Any:
    """A statement that takes its place from the loop."""
    place = m.Call(func=m.Attribute(m.Name("tl"), m.Name("program_id")))
    new = f"tl.cast({row}, tl.int32)" if tensor else row
    edits: list[tuple[cst.CSTNode, Any]] = [(call, instead(new)) for call in find(statement, cst.Call, place)]
    for cast in find(statement, cst.Call, m.Call(func=m.Attribute(place, m.Name("to")), args=[m.Arg()])):
        edits.append((cast, instead(f"tl.cast({row}, {code(cast.args[0].value)})")))
    return edited(statement, edits)
