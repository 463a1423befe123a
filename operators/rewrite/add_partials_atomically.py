"""Replaces partial results that the wrapper sums up by atomic additions to the result."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, instead
from operators.rewrite.accesses import calls_of, expression_of, keyword, positional, reads
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.memory import bases
from operators.rewrite.parameters import only_launches
from operators.rewrite.row_terms import without_row
from operators.source import Kernel, Launch, NotApplicableError, Source, assigned, code, find


@dataclass(frozen=True)
class _Partials:
    """A buffer with one row of partial results per program, in a wrapper.

    Attributes:
        name: The variable.
        made: `torch.empty((programs, n), dtype=torch.float32, …)` or `torch.zeros`.
        summed: `name.sum(dim=0)`.
    """

    name: str
    made: cst.Call
    summed: cst.Call


class AddPartialsAtomically(Rewrite):
    """A store to `partial[program]`, which the wrapper sums over programs, becomes an atomic addition to one row of zeros.

    The buffer must be float32, made for this launch and used for nothing else; each program must store once, at `program * row + columns`.
    Memory and the sum's own kernel go away; results depend on the order of programs by roundings.
    """

    name = "add_partials_atomically"
    exact = False
    when = "Gradients of weights and other column sums in two stages, where few programs or wide rows make waiting rare."
    cites = "The inverse of stage_atomics; PTX ISA, red.global.add.f32."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per such buffer."""
        for launch in source.launches:
            kernel = source.kernels[launch.kernel]
            for parameter, given in launch.arguments.items():
                found = _partials(launch, code(given.value))
                if found is not None:
                    strategy = f"{kernel.name} adds to the sum of {found.name} itself"
                    yield Site(strategy, partial(_rewrite, source, kernel, launch, parameter, found))


def _partials(launch: Launch, name: str) -> _Partials | None:
    pattern = m.Call(func=m.Attribute(m.Name(name), m.Name("sum"))) | m.Call(
        func=m.Attribute(m.Name("torch"), m.Name("sum")), args=[m.Arg(m.Name(name)), m.ZeroOrMore()]
    )
    sums = find(launch.function, cst.Call, pattern) if name.isidentifier() else []
    values = [
        value for value in assigned(launch.function, name) if not m.matches(value, m.Name("None"))
    ]  # for what has no weights
    made = [value for value in values if not any(item in sums for item in find(value, cst.Call))]
    if len(sums) != 1 or len(made) != 1:
        return None
    call, over = (
        made[0].body if isinstance(made[0], cst.IfExp) else made[0],
        [item for item in sums[0].args if code(item.value) != name],
    )
    empty = m.Call(func=m.Attribute(m.Name("torch"), m.Name("empty") | m.Name("zeros")))
    if [code(item.value) for item in over] != ["0"] or not isinstance(call, cst.Call) or not m.matches(call, empty):
        return None
    return _Partials(name, call, sums[0])


def _rewrite(source: Source, kernel: Kernel, launch: Launch, parameter: str, found: _Partials) -> cst.Module:
    if len(only_launches(source, kernel)) != 1:
        raise NotApplicableError(f"{kernel.name} has several launches")
    dtype, shape = keyword(found.made, "dtype"), _shape(found)
    if dtype is None or code(dtype) != "torch.float32":
        raise NotApplicableError(f"{found.name} is not known to be float32")
    strides = m.Attribute(m.Name(found.name), m.Name("stride") | m.Name("device"))
    uses = len(find(launch.function, cst.Name, m.Name(found.name))) - len(find(launch.function, cst.Attribute, strides))
    later = len(assigned(launch.function, found.name)) - 1  # its sum may take its name, and is then used as it was
    if uses != 3 and not (later == 1 and uses > 3):  # where it is made, launched and summed
        raise NotApplicableError(f"{found.name} is used besides the launch and the sum")
    stores = [call for call in calls_of(kernel.node.body, "store", "load", "atomic_add") if _through(kernel, call) == parameter]
    once = _run_once(kernel.node.body, kernel.constexprs)
    if not stores or not all(call in once and m.matches(call.func, m.Attribute(attr=m.Name("store"))) for call in stores):
        raise NotApplicableError(f"{kernel.name} does not store to {parameter} outside branches and loops, or does more with it")
    edits = without_row(kernel, parameter, launch, stores)
    edits += [(call.func, instead("tl.atomic_add")) for call in stores]
    function = cst.ensure_type(found.made.func, cst.Attribute).with_changes(attr=cst.Name("zeros"))
    edits.append((found.made, lambda call: call.with_changes(func=function)))
    edits.append((shape, _without_first))
    edits.append((found.summed, instead(found.name)))
    module = edited(source.module, edits)
    assert isinstance(module, cst.Module)
    return module


def _run_once(block: Any, constexprs: frozenset[str]) -> list[cst.BaseExpression]:
    """The expression statements of a body and of its branches that constexprs choose."""
    found: list[cst.BaseExpression] = []
    for line in block.body:
        if isinstance(line, cst.SimpleStatementLine):
            found += [item.value for item in line.body if isinstance(item, cst.Expr)]
        elif isinstance(line, cst.If) and reads(line.test) <= constexprs:
            found += _run_once(line.body, constexprs)
    return found


def _shape(found: _Partials) -> cst.Call | cst.Tuple | cst.List:
    """What holds the two sizes."""
    given = positional(found.made)
    if len(given) == 2:
        return found.made
    shape = given[0] if len(given) == 1 else None
    if not isinstance(shape, cst.Tuple | cst.List) or len(shape.elements) != 2:
        raise NotApplicableError(f"{found.name} is not made with two sizes")
    return shape


def _without_first(node: Any) -> Any:
    return node.with_changes(args=node.args[1:]) if isinstance(node, cst.Call) else node.with_changes(elements=node.elements[1:])


def _through(kernel: Kernel, call: cst.Call) -> str:
    text = ast.unparse(expression_of(call))
    return next((base for node, base in bases(kernel).items() if ast.unparse(node) == text), _only_parameter(kernel, call))


def _only_parameter(kernel: Kernel, call: cst.Call) -> str:
    """The one parameter without a definition that an address reads; empty where there are several."""
    names = [name for name in reads(positional(call)[0]) if name in kernel.parameters] if positional(call) else []
    return names[0] if len(names) == 1 else ""
