"""Finds what the forward function of a module computes of the module alone, and whether it is the same in each call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.rewrite.accesses import reads, writes
from operators.rewrite.memory import bases, stores
from operators.source import NotApplicableError, Source, code, find

COSTLY = frozenset(
    {
        "contiguous",
        "to",
        "half",
        "bfloat16",
        "float",
        "clone",
        "cat",
        "stack",
        "pad",
        "exp",
        "softmax",
        "sum",
        "mul",
        "sqrt",
        "rsqrt",
    }
)
"""Methods and functions that copy or compute; views cost next to nothing."""
LIBRARIES = frozenset({"torch", "F"})
VALUES = (cst.Call, cst.BinaryOperation, cst.UnaryOperation)
LAZY = (cst.IfExp, cst.BooleanOperation, cst.Lambda)
"""Parts of such expressions may never be computed."""


@dataclass(frozen=True)
class OwnPart:
    """An expression of a statement in the forward function of a module.

    Attributes:
        module, forward, line, value: Where it stands, from outside to inside.
        guards: Conditions that hold where it is computed, which read nothing but the module.
    """

    module: cst.ClassDef
    forward: cst.FunctionDef
    line: cst.SimpleStatementLine
    value: cst.BaseExpression
    guards: tuple[str, ...]

    @property
    def owner(self) -> str:
        """What forward calls the module."""
        return self.forward.params.params[0].name.value

    @property
    def name(self) -> str:
        """What the expression alone is assigned to; empty where it is part of something."""
        alone = m.matches(self.line, m.SimpleStatementLine([m.Assign(targets=[m.AssignTarget(m.Name())])]))
        statement: Any = self.line.body[0]
        return statement.targets[0].target.value if alone and statement.value is self.value else ""

    @property
    def keeps_name(self) -> bool:
        """Whether that name stands for nothing else."""
        return not any(self.name in writes(line) for line in find(self.forward, cst.SimpleStatementLine) if line is not self.line)


def own_parts(module: cst.ClassDef, forward: cst.FunctionDef, block: Any, guards: tuple[str, ...] = ()) -> Iterator[OwnPart]:
    """The largest expressions of a block that read nothing but the module, and copy or compute."""
    owner = forward.params.params[0].name.value if forward.params.params else ""
    for line in block.body:
        if isinstance(line, cst.SimpleStatementLine):
            taken: set[int] = set()
            for lazy in (item for kind in LAZY for item in find(line, kind)):
                taken |= {id(item) for item in find(lazy, cst.CSTNode) if item is not lazy}  # type: ignore[type-abstract]
            for value in (item for item in find(line, cst.BaseExpression) if isinstance(item, VALUES)):  # type: ignore[type-abstract]
                called = {name.value for name in find(value, cst.Name)}
                if id(value) not in taken and reads(value) - LIBRARIES == {owner} and called & COSTLY and find(value, cst.Call):
                    taken |= {id(item) for item in find(value, cst.CSTNode)}  # type: ignore[type-abstract]
                    yield OwnPart(module, forward, line, value, guards)
        elif isinstance(line, cst.If):
            branch: Any = line
            before = guards
            while isinstance(branch, cst.If) and reads(branch.test) == {owner}:
                yield from own_parts(module, forward, branch.body, (*before, code(branch.test)))
                before, branch = (*before, f"not ({code(branch.test)})"), branch.orelse
            if isinstance(branch, cst.Else):
                yield from own_parts(module, forward, branch.body, before)


def check_kept(source: Source, place: OwnPart) -> None:
    """Raises NotApplicableError where a call changes what the expression reads or makes."""
    owner, forward = place.owner, place.forward
    read = " ".join([code(place.value), *place.guards])
    own = find(cst.parse_expression(f"({', '.join([code(place.value), *place.guards, ''])})"), cst.Attribute)
    roots = {item.attr.value for item in own if m.matches(item.value, m.Name(owner))}
    targets = [item.target for kind in (cst.AssignTarget, cst.AugAssign) for item in find(forward, kind)]  # type: ignore[attr-defined]
    changed = [item.attr.value for target in targets for item in find(target, cst.Attribute, m.Attribute(m.Name(owner)))]
    called = [item.func for item in find(forward, cst.Call)]
    changed += [func.attr.value for func in called if isinstance(func, cst.Attribute) and m.matches(func.value, m.Name(owner))]
    inside = [func.value for func in called if isinstance(func, cst.Attribute) and func.attr.value.endswith("_")]
    changed += [item.attr.value for value in inside for item in find(value, cst.Attribute, m.Attribute(m.Name(owner)))]
    if roots & set(changed):
        raise NotApplicableError(f"forward changes what {' '.join(read.split())} reads")
    if not place.name:
        return
    inside += [item.target for item in find(forward, cst.AugAssign)]
    if any(m.matches(value, m.Name(place.name)) for value in inside):
        raise NotApplicableError(f"forward changes {place.name} in place")
    for launch in source.launches:
        into = {base for call, base in bases(source.kernels[launch.kernel]).items() if stores(call)}
        given = {name for name, item in launch.arguments.items() if code(item.value) == place.name}
        if launch.function is forward and ("" in into or into & given):
            raise NotApplicableError(f"{launch.kernel} may write to {place.name}")
