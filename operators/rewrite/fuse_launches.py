"""Makes one kernel of two that are launched one after the other over the same grid."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import appended, edited, instead, unused
from operators.rewrite.accesses import expression_of, keyword, positional, tree_of
from operators.rewrite.aliases import Aliases, in_launch_terms
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.dividing import statement_of
from operators.rewrite.grids import axes
from operators.rewrite.memory import bases
from operators.rewrite.parameters import Edits, only_launches
from operators.source import Kernel, Launch, NotApplicableError, Source, called, code, find

ALLOCATIONS = ("torch.empty", "torch.zeros", "torch.full", "torch.ones")


@dataclass(frozen=True)
class _Pair:
    """Two launches, their kernels, and the statements that they are."""

    launches: tuple[Launch, Launch]
    kernels: tuple[Kernel, Kernel]
    lines: tuple[Any, Any]


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
        if len(only_launches(source, kernel)) != 1 or kernel.decorated or launch.unpacks:
            raise NotApplicableError(f"{kernel.name} has several launches, or an autotuner")
        if set(kernel.parameters) - set(launch.arguments) or kernel.node.params.kwonly_params:
            raise NotApplicableError(f"the launch of {kernel.name} leaves parameters to their defaults")
    if find(kernels[0].node.body, cst.Return) or {"debug_barrier", "atomic_cas"} & (kernels[0].uses | kernels[1].uses):
        raise NotApplicableError(f"{kernels[0].name} returns early, or programs wait for each other")
    pair = _Pair((first, second), kernels, (statement_of(first), statement_of(second)))
    _check_between(pair)
    if [code(item.value) for item in axes(first).elements] != [code(item.value) for item in axes(second).elements]:
        raise NotApplicableError(f"the grids of {first.kernel} and {second.kernel} differ")
    passed_on = _passed_on(pair)
    names = _names(source, pair)
    name = unused(f"{first.kernel}_{second.kernel}", source.names)
    fused = _fused(pair, name, names, passed_on)
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


def _check_between(pair: _Pair) -> None:
    """Raises NotApplicableError unless only allocations stand between the launches, in the same block."""
    for block in find(pair.launches[0].function, cst.IndentedBlock):
        lines: list[Any] = list(block.body)
        if pair.lines[0] in lines and pair.lines[1] in lines:
            between = lines[lines.index(pair.lines[0]) + 1 : lines.index(pair.lines[1])]
            made = all(m.matches(line, m.SimpleStatementLine([m.Assign()])) for line in between)
            if made and all(code(call.func).startswith(ALLOCATIONS) for line in between for call in find(line, cst.Call)):
                return
    raise NotApplicableError(f"more than allocations stands between the launches of {' and '.join(k.name for k in pair.kernels)}")


def _passed_on(pair: _Pair) -> dict[str, list[str]]:
    """Text of a store of the first → texts of the loads of the second that get its value.

    Raises:
        NotApplicableError: The kernels touch one tensor in another way.
    """
    aliases, touched = Aliases(pair.launches[0].function), []
    for kernel, launch in zip(pair.kernels, pair.launches, strict=True):
        found: dict[str, list[ast.Call]] = {}
        for call, base in bases(kernel).items():
            if not base:
                raise NotApplicableError(f"it is not clear through which parameters {kernel.name} accesses memory")
            found.setdefault(aliases.root(launch.text(base)), []).append(call)
        touched.append(found)
    passed_on: dict[str, list[str]] = {}
    for root in sorted(set(touched[0]) & set(touched[1])):
        kinds = [{called(call) for call in side[root]} for side in touched]
        if kinds == [{"load"}, {"load"}]:
            continue
        stores, loads = touched[0][root], touched[1][root]
        places = {_place(pair.kernels[0], pair.launches[0], call) for call in stores}
        places |= {_place(pair.kernels[1], pair.launches[1], call) for call in loads}
        top = [ast.unparse(line.value) for line in pair.kernels[0].tree.body if isinstance(line, ast.Expr)]
        if kinds != [{"store"}, {"load"}] or len(stores) != 1 or len(places) != 1 or ast.unparse(stores[0]) not in top:
            raise NotApplicableError(f"{pair.kernels[1].name} does more with {root} than load what its own program stored once")
        passed_on[ast.unparse(stores[0])] = [ast.unparse(load) for load in loads]
    return passed_on


def _place(kernel: Kernel, launch: Launch, call: ast.Call) -> tuple[str, str]:
    """Address and mask of an access, as launches give them."""
    mask = next((word.value for word in call.keywords if word.arg == "mask"), None)
    pointer = in_launch_terms(kernel, launch, call.args[0])
    return pointer, "" if mask is None else in_launch_terms(kernel, launch, mask)


def _names(source: Source, pair: _Pair) -> dict[str, str]:
    """New names of the second kernel's variables: those of the first's parameters that get the same, or unused ones."""
    mine = {node.value for node in find(pair.kernels[0].node, cst.Name)}
    given = {launch_text: name for name, launch_text in _texts(pair, 0).items()}
    names: dict[str, str] = {}
    taken = set(source.names)
    own = {n.id for n in ast.walk(pair.kernels[1].tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    changed = {
        n.id for side in pair.kernels for n in ast.walk(side.tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    for name, text in _texts(pair, 1).items():
        twin = given.get(text, "")
        alike = (twin in pair.kernels[0].constexprs) == (name in pair.kernels[1].constexprs)
        if twin and alike and not {twin, name} & changed:
            names[name] = twin
    for name in sorted((own | set(pair.kernels[1].parameters)) & mine):
        if name not in names:
            names[name] = unused(f"{name}_2", taken)
            taken.add(names[name])
    return names


def _texts(pair: _Pair, side: int) -> dict[str, str]:
    return {name: " ".join(pair.launches[side].text(name).split()) for name in pair.kernels[side].parameters}


def _fused(pair: _Pair, name: str, names: dict[str, str], passed_on: dict[str, list[str]]) -> Any:
    one, two = (kernel.node for kernel in pair.kernels)
    block: Any = one.body
    values: dict[str, str] = {}
    before: list[Any] = []
    for line in block.body:
        text = ast.unparse(tree_of(line))
        if text in passed_on:
            call = line.body[0].value
            value = unused(f"stored_{len(values)}", names.values())
            pointer = next(base for node, base in bases(pair.kernels[0]).items() if ast.unparse(node) == text)
            rounded = cst.parse_statement(f"{value} = ({code(positional(call)[1])}).to({pointer}.dtype.element_ty)")
            before += [rounded, edited(line, [(positional(call)[1], instead(value))])]
            values |= dict.fromkeys(passed_on[text], value)
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


def _launched(line: Any, pair: _Pair, name: str, names: dict[str, str]) -> Any:
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
    grid = code(cst.ensure_type(two.call.func, cst.Subscript).with_changes(value=cst.Name(name)))
    call = cst.parse_expression(f"{grid}({', '.join(given)})")
    return line.with_changes(body=[cst.Expr(call)], leading_lines=[*pair.lines[0].leading_lines, *line.leading_lines])
