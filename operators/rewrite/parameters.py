"""Gives a kernel one more parameter, which all of its launches pass: a knob, or what a launch computes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from evo.records import KnobValue
from operators.edits import Edit, edited, unused, with_argument, with_knob, with_parameter
from operators.source import Kernel, Launch, NotApplicableError, Source, find, knob_names

Edits = list[tuple[cst.CSTNode, Edit]]


def only_launches(source: Source, kernel: Kernel) -> tuple[Launch, ...]:
    """The launches of a kernel that is used in no other way, so that its parameters may change."""
    launches = source.launches_of(kernel)
    if len(find(source.module, cst.Name, m.Name(kernel.name))) != len(launches) + 1:
        raise NotApplicableError(f"{kernel.name} is used besides its plain launches")
    return launches


def passed(source: Source, kernel: Kernel, name: str, texts: Iterable[str], *, constexpr: bool) -> Edits:
    """The edits that add a parameter; `texts` are what the launches pass for it, in their order."""
    edits: Edits = [(kernel.node, partial(with_parameter, name=name, constexpr=constexpr))]
    for launch, text in zip(only_launches(source, kernel), texts, strict=True):
        edits.append((launch.call, partial(with_argument, name=name, text=f"({text})" if "\n" in text else text)))
    return edits


def tunable(source: Source, kernel: Kernel, name: str, knob: tuple[KnobValue, Sequence[KnobValue]], edits: Edits) -> cst.Module:
    """The module after `edits`, with a constexpr `name` of the kernel that is a new knob with that default and those choices."""
    wanted = unused(name, knob_names(source.module))
    texts = [f'CONFIG["{wanted}"]'] * len(source.launches_of(kernel))
    module: Any = edited(source.module, [*edits, *passed(source, kernel, name, texts, constexpr=True)])
    return with_knob(module, wanted, *knob)


def with_prologue(kernel: Kernel, *lines: str) -> Edit:
    """The edit of a kernel's body that puts statements before its first, behind its docstring."""
    new = [cst.parse_statement(line) for line in lines]

    def edit(block: Any) -> Any:
        place = 1 if m.matches(block.body[0], m.SimpleStatementLine([m.Expr(m.SimpleString())])) else 0
        return block.with_changes(body=[*block.body[:place], *new, *block.body[place:]])

    return edit
