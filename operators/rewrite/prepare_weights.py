"""Moves what a module computes of its own parameters in each call to `prepare`, which runs once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, unused
from operators.rewrite.accesses import reads, writes
from operators.rewrite.base import Rewrite, Site
from operators.source import NotApplicableError, Source, code, find

COSTLY = frozenset(
    {"contiguous", "to", "half", "bfloat16", "float", "clone", "cat", "stack", "pad", "exp", "softmax", "sum", "mul"}
)
"""Methods and functions that copy or compute; views cost next to nothing."""


@dataclass(frozen=True)
class _Place:
    """`name = value` in the forward function of a module."""

    module: cst.ClassDef
    forward: cst.FunctionDef
    line: cst.SimpleStatementLine
    name: str
    value: cst.BaseExpression


class PrepareWeights(Rewrite):
    """`w = self.weight.t().contiguous()` in `forward` moves to `prepare`; where nobody called that, `forward` computes it as before.

    For statements that read nothing but the module. What is prepared is a constant: modules that use autograd keep their statements.
    """

    name = "prepare_weights"
    when = "A module transposes, casts, packs or joins its weights in each call."
    cites = "PyTorch documentation, torch.ao.nn.quantized (packed weights at load time); constant folding in TorchInductor's freezing."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per statement."""
        if "autograd" in source.names:
            raise NotApplicableError("the module uses autograd, for which prepared weights are constants")
        for place in _places(source):
            strategy = f"{place.module.name.value} prepares {place.name} once: {' '.join(code(place.value).split())}"
            yield Site(strategy, partial(_rewrite, source, place))


def _places(source: Source) -> Iterator[_Place]:
    for module in find(source.module, cst.ClassDef):
        if not any("Module" in code(base.value) for base in module.bases):
            continue
        for forward in find(module, cst.FunctionDef, m.FunctionDef(name=m.Name("forward"))):
            owner = forward.params.params[0].name.value if forward.params.params else ""
            for line in forward.body.body:
                if not m.matches(line, m.SimpleStatementLine([m.Assign(targets=[m.AssignTarget(m.Name())])])):
                    continue
                statement = cst.ensure_type(cst.ensure_type(line, cst.SimpleStatementLine).body[0], cst.Assign)
                called = {name.value for name in find(statement.value, cst.Name)}
                if reads(statement.value) - {"torch"} == {owner} and called & COSTLY and find(statement.value, cst.Call):
                    name = cst.ensure_type(statement.targets[0].target, cst.Name).value
                    yield _Place(module, forward, cst.ensure_type(line, cst.SimpleStatementLine), name, statement.value)


def _rewrite(source: Source, place: _Place) -> cst.Module:
    owner = place.forward.params.params[0].name.value
    own = [node.attr.value for node in find(place.value, cst.Attribute, m.Attribute(m.Name(owner)))]
    for line in place.forward.body.body:
        stored = find(line, cst.AssignTarget, m.AssignTarget(m.Attribute(m.Name(owner))))
        if any(code(item.target).split(".")[-1] in own for item in stored):
            raise NotApplicableError(f"forward changes what {place.name} is made of")
    if any(place.name in writes(line) for line in place.forward.body.body if line is not place.line):
        raise NotApplicableError(f"{place.name} gets another value later")
    kept = unused(f"prepared_{place.name}", source.names)
    text = code(place.value)
    first = cst.parse_statement(f'{place.name} = getattr({owner}, "{kept}", None)')
    other = cst.parse_statement(f"if {place.name} is None:\n    {place.name} = {text}\n")
    first = cst.ensure_type(first, cst.SimpleStatementLine).with_changes(leading_lines=place.line.leading_lines)
    branch = cst.ensure_type(other, cst.If)
    inner: Any = branch.body.body[0]
    inner = inner.with_changes(trailing_whitespace=place.line.trailing_whitespace)
    branch = branch.with_changes(body=branch.body.with_changes(body=[inner]))
    edits: list[tuple[cst.CSTNode, Any]] = [(place.line, lambda _: cst.FlattenSentinel([first, branch]))]
    prepares = find(place.module, cst.FunctionDef, m.FunctionDef(name=m.Name("prepare")))
    if prepares:
        receiver = prepares[0].params.params[0].name.value
        line = cst.parse_statement(f"{receiver}.{kept} = ({_owned(place.value, owner, receiver)}).detach()")
        edits.append((prepares[0].body, lambda block: block.with_changes(body=[*block.body, line])))
    else:
        method = cst.ensure_type(
            cst.parse_statement(f"def prepare({owner}):\n    {owner}.{kept} = ({text}).detach()\n"), cst.FunctionDef
        )
        method = method.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
        edits.append((place.forward, lambda node: cst.FlattenSentinel([node, method])))
    module = edited(source.module, edits)
    assert isinstance(module, cst.Module)
    return module


def _owned(value: cst.BaseExpression, owner: str, receiver: str) -> str:
    names = [(node, lambda _: cst.Name(receiver)) for node in find(value, cst.Name, m.Name(owner))]
    return code(edited(value, names))
