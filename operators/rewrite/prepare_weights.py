"""Moves what a module computes of its own parameters in each call to `prepare`, which runs once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, unused
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.own_parts import OwnPart, check_kept, own_parts
from operators.source import NotApplicableError, Source, code, find


class PrepareWeights(Rewrite):
    """`w = self.weight.t().contiguous()` in `forward` moves to `prepare`; where nobody called that, `forward` computes it as before.

    For expressions that read nothing but the module, wherever they stand, and branches that ask nothing but the module. What is
    prepared is a constant: modules that use autograd keep their statements, as do those that change what they read.
    """

    name = "prepare_weights"
    when = "A module transposes, casts, packs or joins its weights in each call."
    cites = "PyTorch documentation, torch.ao.nn.quantized (packed weights at load time); constant folding in TorchInductor's freezing."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per expression."""
        if "autograd" in source.names:
            raise NotApplicableError("the module uses autograd, for which prepared weights are constants")
        for module in find(source.module, cst.ClassDef):
            if any("Module" in code(base.value) for base in module.bases):
                for forward in find(module, cst.FunctionDef, m.FunctionDef(name=m.Name("forward"))):
                    for place in own_parts(module, forward, forward.body):
                        what = place.name or "its part"
                        strategy = f"{module.name.value} prepares {what} once: {' '.join(code(place.value).split())}"
                        yield Site(strategy, partial(_rewrite, source, place))


def _rewrite(source: Source, place: OwnPart) -> cst.Module:
    check_kept(source, place)
    owner, text = place.owner, code(place.value)
    last = place.name or next(
        item.attr.value for item in find(place.value, cst.Attribute) if m.matches(item.value, m.Name(owner))
    )
    kept = unused(f"prepared_{last}", source.names)
    named = bool(place.name) and place.keeps_name
    local = place.name if named else kept
    first: Any = cst.parse_statement(f'{local} = getattr({owner}, "{kept}", None)')
    first = first.with_changes(leading_lines=place.line.leading_lines)
    branch: Any = cst.parse_statement(f"if {local} is None:\n    {local} = {text}\n")
    if named:
        inner = branch.body.body[0].with_changes(trailing_whitespace=place.line.trailing_whitespace)
        lines = [first, branch.with_changes(body=branch.body.with_changes(body=[inner]))]
    else:
        other = edited(place.line, [(place.value, lambda _: cst.Name(local))])
        lines = [first, branch, other.with_changes(leading_lines=[])]
    edits: list[tuple[cst.CSTNode, Any]] = [(place.line, lambda _: cst.FlattenSentinel(lines))]
    prepares = find(place.module, cst.FunctionDef, m.FunctionDef(name=m.Name("prepare")))
    receiver = prepares[0].params.params[0].name.value if prepares else owner
    value, *guards = (_owned(item, owner, receiver) for item in (text, *place.guards))
    made = f"{receiver}.{kept} = ({value}).detach()"
    guard = " and ".join(item if item.startswith("not (") or len(guards) == 1 else f"({item})" for item in guards)
    line: Any = cst.parse_statement(f"if {guard}:\n    {made}\n" if guards else made)
    if prepares:
        edits.append((prepares[0].body, lambda block: block.with_changes(body=[*block.body, line])))
    else:
        method = cst.ensure_type(cst.parse_statement(f"def prepare({owner}):\n    pass\n"), cst.FunctionDef)
        method = method.with_changes(leading_lines=[cst.EmptyLine(indent=False)], body=method.body.with_changes(body=[line]))
        edits.append((place.forward, lambda node: cst.FlattenSentinel([node, method])))
    module = edited(source.module, edits)
    assert isinstance(module, cst.Module)
    return module


def _owned(text: str, owner: str, receiver: str) -> str:
    node = cst.parse_expression(f"({text})")
    names = [(item, lambda _: cst.Name(receiver)) for item in find(node, cst.Name, m.Name(owner))]
    return code(edited(node.with_changes(lpar=[], rpar=[]), names)) if "\n" not in text else f"({code(edited(node, names))})"
