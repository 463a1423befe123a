"""Makes one kernel of two that are launched one after the other over the same grid."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import appended, edited, instead, unused
from operators.rewrite.accesses import expression_of, keyword, positional, tree_of
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.dividing import statement_of
from operators.rewrite.launch_pairs import Pair, check_between, check_same_launch, new_names, passed_on
from operators.rewrite.memory import bases
from operators.rewrite.parameters import Edits, only_launches
from operators.source import Launch, NotApplicableError, Source, code, find

ALLOCATIONS = ("torch.empty", "torch.zeros", "torch.full", "torch.ones")


class FuseLaunches(Rewrite):
    """`f[grid](…)` and `g[grid](…)` become one launch of a kernel that does what a program of `f` and then one of `g` did.

    They may work on different tensors; or `g` loads what the same program of `f` stored, at the same addresses, and then takes the
    value from registers, rounded as memory would have. Names of the second are changed where the first has them.
    """

    name = "fuse_launches"
    when = "Launches cost as much as kernels, or the second reads back what the first wrote: elementwise chains, small norms."
    cites = "Filipovič et al., Optimizing CUDA code by kernel fusion (J. Supercomputing 2015); TorchInductor's fusion."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per two launches with nothing but allocations between."""
        for first, second in zip(source.launches, source.launches[1:], strict=False):
            if first.function is second.function and first.kernel != second.kernel:
                strategy = f"{first.kernel} and {second.kernel} are one kernel"
                yield Site(strategy, partial(_rewrite, source, first, second))


def _rewrite(source: Source, first: Launch, second: Launch) -> cst.Module:
    kernels = source.kernels[first.kernel], source.kernels[second.kernel]
    for kernel, launch in zip(kernels, (first, second), strict=True):
        if len(only_launches(source, kernel)) != 1 or kernel.decorated:
            raise NotApplicableError(f"{kernel.name} has several launches, or an autotuner")
        if set(kernel.parameters) - set(launch.arguments) or kernel.node.params.kwonly_params:
            raise NotApplicableError(f"the launch of {kernel.name} leaves parameters to their defaults")
    if find(kernels[0].node.body, cst.Return) or {"debug_barrier", "atomic_cas"} & (kernels[0].uses | kernels[1].uses):
        raise NotApplicableError(f"{kernels[0].name} returns early, or programs wait for each other")
    pair = Pair((first, second), kernels, (statement_of(first), statement_of(second)))
    check_between(pair)
    check_same_launch(pair)
    values = passed_on(pair)
    names = new_names(source, pair)
    name = unused(f"{first.kernel}_{second.kernel}", source.names)
    fused = _fused(pair, name, names, values)
    edits: Edits = [(kernels[0].node, lambda _: cst.RemoveFromParent()), (kernels[1].node, lambda _: fused)]
    edits += [
        (pair.lines[0], lambda _: cst.RemoveFromParent()),
        (pair.lines[1], partial(_launched, pair=pair, name=name, names=names)),
    ]
    module = edited(source.module, edits)
    assert isinstance(module, cst.Module)
    if any(node.value not in module.code for node in find(source.module, cst.Comment)):
        raise NotApplicableError(f"comments in the parameters of {first.kernel} or {second.kernel} would be lost")
    return module


def _fused(pair: Pair, name: str, names: dict[str, str], given: dict[str, list[str]]) -> Any:
    one, two = (kernel.node for kernel in pair.kernels)
    block: Any = one.body
    values: dict[str, str] = {}
    before: list[Any] = []
    for line in block.body:
        text = ast.unparse(tree_of(line))
        if text in given:
            call = line.body[0].value
            value = unused(f"stored_{len(values)}", names.values())
            pointer = next(base for node, base in bases(pair.kernels[0]).items() if ast.unparse(node) == text)
            rounded = cst.parse_statement(f"{value} = ({code(positional(call)[1])}).to({pointer}.dtype.element_ty)")
            before += [rounded, edited(line, [(positional(call)[1], instead(value))])]
            values |= dict.fromkeys(given[text], value)
        else:
            before.append(line)
    edits: list[tuple[cst.CSTNode, Any]] = []
    words = [item.keyword for item in find(two.body, cst.Arg) if item.keyword is not None] + [
        a.attr for a in find(two.body, cst.Attribute)
    ]
    for node in find(two.body, cst.Name):
        if node.value in names and not any(node is word for word in words):
            edits.append((node, instead(names[node.value])))
    for call in find(two.body, cst.Call):
        known = values.get(ast.unparse(expression_of(call)))
        if known is not None:
            edits.append((call, partial(_taken, value=known)))
    after: Any = edited(two.body, edits)
    lines = list(after.body)
    docstring = m.matches(lines[0], m.SimpleStatementLine([m.Expr(m.SimpleString())]))
    extra = [item for item in two.params.params if names.get(item.name.value, "") not in pair.kernels[0].parameters]
    extra = [item.with_changes(name=cst.Name(names.get(item.name.value, item.name.value))) for item in extra]
    parameters: Any = list(one.params.params)
    for item in extra:
        parameters = appended(parameters, item.with_changes(comma=cst.MaybeSentinel.DEFAULT))
    none = {"default": None, "equal": cst.MaybeSentinel.DEFAULT}  # the launch gives all
    parameters = [item.with_changes(**none) for item in parameters]
    comments = [line for line in two.leading_lines if line.comment is not None]
    return one.with_changes(
        name=cst.Name(name), params=one.params.with_changes(params=parameters), leading_lines=[*one.leading_lines, *comments],
        body=block.with_changes(body=[*before, *lines[1 if docstring else 0 :]]),
    )  # fmt: skip


def _taken(call: Any, value: str) -> Any:
    """A stored value in place of a load; beyond the mask, what the load would have given."""
    mask, other = keyword(call, "mask"), keyword(call, "other")
    return cst.parse_expression(value if mask is None or other is None else f"tl.where({code(mask)}, {value}, {code(other)})")


def _launched(line: Any, pair: Pair, name: str, names: dict[str, str]) -> Any:
    one, two = pair.launches
    options = [{key: code(item.value) for key, item in launch.arguments.items() if key not in kernel.parameters}
               for launch, kernel in zip(pair.launches, pair.kernels, strict=True)]  # fmt: skip
    if options[0] != options[1]:
        raise NotApplicableError(f"{one.kernel} and {two.kernel} are launched with different options")
    given = [f"{parameter}={one.text(parameter)}" for parameter in pair.kernels[0].parameters]
    for parameter in pair.kernels[1].parameters:
        if names.get(parameter, "") not in pair.kernels[0].parameters:
            given.append(f"{names.get(parameter, parameter)}={two.text(parameter)}")
    given += [f"{key}={text}" for key, text in options[0].items()]
    given += [code(item.with_changes(comma=cst.MaybeSentinel.DEFAULT)).strip() for item in one.call.args if item.star]
    grid = code(cst.ensure_type(two.call.func, cst.Subscript).with_changes(value=cst.Name(name)))
    call = cst.parse_expression(f"{grid}({', '.join(given)})")
    return line.with_changes(body=[cst.Expr(call)], leading_lines=[*pair.lines[0].leading_lines, *line.leading_lines])
