"""Writes out what a launch passes as `**CONFIG`, so that other rewrites can read and change its arguments."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited
from operators.rewrite.base import Rewrite, Site
from operators.source import NotApplicableError, Source, find, knob_names

UNPACKED = m.Arg(star="**", value=m.Name("CONFIG"))


class NameArguments(Rewrite):
    """`kernel[grid](x, **CONFIG)` becomes `kernel[grid](x, BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"])`, in all launches.

    The launch is the same. Most rewrites change only launches whose arguments they can read.
    """

    name = "name_arguments"
    when = "A launch unpacks its knobs, which keeps other rewrites from it: before them."
    cites = "Python Language Reference, calls: a dictionary after ** gives keyword arguments."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site: the whole module."""
        launches = [call for call in find(source.module, cst.Call, m.Call(func=m.Subscript())) if _unpacked(call)]
        if not launches:
            raise NotApplicableError("no launch passes **CONFIG")
        if not knob_names(source.module):
            raise NotApplicableError("the module declares no knobs")
        yield Site("launches name the knobs they pass", partial(_rewrite, source, launches))


def _unpacked(call: cst.Call) -> bool:
    return any(m.matches(item, UNPACKED) for item in call.args)


def _rewrite(source: Source, launches: list[cst.Call]) -> cst.Module:
    module = edited(source.module, [(call, partial(_named, names=sorted(knob_names(source.module)))) for call in launches])
    assert isinstance(module, cst.Module)
    return module


def _named(call: Any, names: list[str]) -> Any:
    arguments: list[Any] = []
    for item in call.args:
        if not m.matches(item, UNPACKED):
            arguments.append(item)
            continue
        equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        knobs = [cst.Arg(cst.parse_expression(f'CONFIG["{name}"]'), cst.Name(name), equal=equal, comma=comma) for name in names]
        knobs[-1] = knobs[-1].with_changes(comma=item.comma, whitespace_after_arg=item.whitespace_after_arg)
        arguments += knobs
    return call.with_changes(args=arguments)
