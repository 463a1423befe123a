"""Writes out what launches unpack, `**CONFIG` or `*x.stride()`, so that other rewrites can read and change their arguments."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.unpacking import keys_of, lengths_of, parts_of
from operators.source import NotApplicableError, Source, find, knob_names


class NameArguments(Rewrite):
    """`kernel[grid](x, **CONFIG)` becomes `kernel[grid](x, BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"])`, in all launches.

    `*strides` becomes `strides[0], strides[1]`, `*x.stride()` becomes `x.stride(0), x.stride(1)`, and `*((a, b) if test else (0, 0))` a
    choice per element, where it is told how many there are: by tuples assigned to the name, `rows, columns = x.shape`, or how many
    parameters of the kernel are left. Dictionaries of a function's own that nothing changes are written out as `CONFIG` is. The launch
    is the same. Most rewrites change only launches whose arguments they can read.
    """

    name = "name_arguments"
    when = "A launch unpacks its knobs, its strides or other arguments, which keeps other rewrites from it: before them."
    cites = "Python Language Reference, calls: what stands after * gives positional arguments, a dictionary after ** keyword arguments."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site: the whole module."""
        knobs = sorted(knob_names(source.module))
        edits: list[tuple[cst.CSTNode, Any]] = []
        unpacked = False
        for function in find(source.module, cst.FunctionDef):
            for call in find(function, cst.Call, m.Call(func=m.Subscript(value=m.Name()))):
                stars = [item for item in call.args if item.star]
                unpacked = unpacked or bool(stars)
                named = _named(source, function, call, knobs) if stars and not any(call is done for done, _ in edits) else None
                if named is not None:
                    edits.append((call, partial(_with_arguments, arguments=named)))
        if not edits:
            raise NotApplicableError(
                "no launch unpacks what is told to have a fixed number of parts" if unpacked else "no launch unpacks anything"
            )
        yield Site("launches name the arguments they unpack", lambda: edited(source.module, edits))


def _with_arguments(call: Any, arguments: list[cst.Arg]) -> Any:
    return call.with_changes(args=arguments)


def _named(source: Source, function: cst.FunctionDef, call: cst.Call, knobs: list[str]) -> list[cst.Arg] | None:
    """The arguments of a launch with those written out whose parts are known; None where there are none."""
    kernel = source.kernels.get(cst.ensure_type(cst.ensure_type(call.func, cst.Subscript).value, cst.Name).value)
    if kernel is None or kernel.name == function.name.value:
        return None
    lengths = lengths_of(function, kernel, call)
    arguments: list[cst.Arg] = []
    for item in call.args:
        new: list[cst.Arg] | None = None
        if item.star == "*" and id(item) in lengths:
            new = [cst.Arg(cst.parse_expression(text)) for text in parts_of(item.value, lengths[id(item)])]
        elif item.star == "**":
            keys = knobs if m.matches(item.value, m.Name("CONFIG")) else keys_of(function, item.value)
            new = [_keyword(name, item.value) for name in keys]
        arguments += _spaced(new, item) if new else [item]
    return arguments if len(arguments) != len(call.args) or not any(item.star for item in arguments) else None


def _keyword(name: str, table: cst.BaseExpression) -> cst.Arg:
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return cst.Arg(
        cst.Subscript(table.deep_clone(), [cst.SubscriptElement(cst.Index(cst.SimpleString(f'"{name}"')))]),
        cst.Name(name),
        equal=equal,
    )


def _spaced(new: list[cst.Arg], item: cst.Arg) -> list[cst.Arg]:
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    new = [argument.with_changes(comma=comma) for argument in new]
    return [*new[:-1], new[-1].with_changes(comma=item.comma, whitespace_after_arg=item.whitespace_after_arg)]
