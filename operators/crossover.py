"""A rule-based crossover: two modules of one task exchange knob values, kernels, parts of kernels, or the entry with its kernels."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import libcst as cst
import numpy as np

from evo.knobs import read_knobs
from evo.records import KnobValue, NoProposal, Proposal
from evo.syntax import expression_tree, module_tree
from operators.base import Context, Operator, OperatorKind, Parent
from operators.crossover_loops import Segment, exchanges
from operators.edits import edited, instead, knob_table, with_knob
from operators.rewrite.accesses import tree_of
from operators.source import Kernel, NotApplicableError, Source, check, code, read_source

Exchange = tuple[str, Callable[[], cst.Module]]
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""Beginnings of the names of knobs that say how a kernel is launched, not what its programs do."""


class ExchangeParts(Operator):
    """The child is the first parent with a part of the second: the parts are chosen so that their interfaces fit.

    * values of knobs both declare: each with probability one half, or all launch options, or all tile sizes and what else there is,
    * a kernel with the same parameters,
    * a loop, or what stands before, between or after loops, of kernels with the same loops; a statement of kernels that have none,
    * the entry function, with all that it needs from the second parent.
    """

    name = "exchange_parts"
    kind = OperatorKind.CROSSOVER
    arity = 2

    async def propose(self, parents: tuple[Parent, ...], context: Context, rng: np.random.Generator) -> Proposal | NoProposal:
        """A child that differs from both parents in more than layout, or the reason why there is none."""
        try:
            first, second = (read_source(parent.variant.source) for parent in parents)
            offered = [
                *_knob_values(first, second, rng),
                *_kernels(first, second),
                *_segments(first, second),
                *_entry(first, second, context.entry),
            ]
        except NotApplicableError as error:
            return NoProposal(f"{self.name}: {error}")
        meanings = {ast.dump(module_tree(parent.variant.source)) for parent in parents}
        for index in rng.permutation(len(offered)):
            strategy, apply = offered[index]
            try:
                child = apply().code
                check(child)
            except NotApplicableError:
                continue
            if ast.dump(module_tree(child)) not in meanings:
                return Proposal(child, strategy)
        return NoProposal(f"{self.name}: the parents have no parts that fit and differ")


def _knob_values(first: Source, second: Source, rng: np.random.Generator) -> Iterator[Exchange]:
    mine, theirs = read_knobs(first.module.code), read_knobs(second.module.code)
    shared = [name for name, value in mine.default.items() if name in theirs.default and theirs.default[name] != value]
    if shared:
        kept = [name for name, take in zip(shared, rng.random(len(shared)) < 0.5, strict=True) if take] or shared[:1]
        groups = [
            kept,
            [name for name in shared if name.startswith(OPTIONS)],
            [name for name in shared if not name.startswith(OPTIONS)],
        ]
        for label, names in zip(("knobs", "launch options", "tiling"), groups, strict=True):
            if names and (label == "knobs" or names != shared):
                values = {name: theirs.default[name] for name in names}
                yield f"{label} {', '.join(names)} of the second parent", partial(_with_values, first.module, values)


def _with_values(module: cst.Module, values: dict[str, KnobValue]) -> cst.Module:
    """Sets knobs; a value that `SPACE` lacks is added to it."""
    edits: list[tuple[cst.CSTNode, Any]] = []
    for variable in ("CONFIG", "SPACE"):
        table = knob_table(module, variable)
        for element in table.elements if table is not None else ():
            name = code(element.key).strip("\"'") if isinstance(element, cst.DictElement) else ""
            if name in values and variable == "CONFIG":
                new = repr(values[name])
            elif name in values and values[name] not in (present := ast.literal_eval(expression_tree(code(element.value)))):
                choices = [*present, values[name]]
                new = repr(sorted(choices) if all(isinstance(c, int | float) for c in choices) else choices)
            else:
                continue
            edits.append((element.value, instead(new)))
    result = edited(module, edits)
    assert isinstance(result, cst.Module)
    return result


def _interface(kernel: Kernel) -> tuple[tuple[str, ...], frozenset[str], bool]:
    return kernel.parameters, kernel.constexprs, kernel.decorated


def _kernels(first: Source, second: Source) -> Iterator[Exchange]:
    for mine in first.kernels.values():
        fits = [other for other in second.kernels.values() if _interface(other) == _interface(mine)]
        for theirs in [other for other in fits if other.name == mine.name] or fits:
            if any(launch.kernel == mine.name for launch in first.launches):
                yield f"kernel {theirs.name} of the second parent", partial(_with_kernel, first, second, mine, theirs)


def _with_kernel(first: Source, second: Source, mine: Kernel, theirs: Kernel) -> cst.Module:
    node = theirs.node.with_changes(name=cst.Name(mine.name), leading_lines=mine.node.leading_lines)
    module = edited(first.module, [(mine.node, lambda _: node)])
    assert isinstance(module, cst.Module)
    return _completed(module, second.module, theirs.tree)


def _segments(first: Source, second: Source) -> Iterator[Exchange]:
    for mine in first.kernels.values():
        for theirs in [second.kernels[mine.name]] if mine.name in second.kernels else []:
            for old, new in exchanges(mine, theirs):
                yield f"{new.label} of {mine.name} of the second parent", partial(_with_segment, first, second, old, new)


def _with_segment(first: Source, second: Source, old: Segment, new: Segment) -> cst.Module:
    """The first parent's module with statements of the second in the place of its own, and with what these read."""
    if not old.lines:
        raise NotApplicableError("there is no statement whose place others could take")
    edits: list[tuple[cst.CSTNode, Any]] = [(old.lines[0], lambda _: cst.FlattenSentinel(new.lines))]
    edits += [(line, lambda _: cst.RemoveFromParent()) for line in old.lines[1:]]
    module = edited(first.module, edits)
    assert isinstance(module, cst.Module)
    return _completed(module, second.module, module_tree("\n".join(ast.unparse(tree_of(line)) for line in new.lines)))


def _entry(first: Source, second: Source, entry: str) -> Iterator[Exchange]:
    mine, theirs = _definitions(first.module).get(entry), _definitions(second.module).get(entry)
    if isinstance(mine, cst.FunctionDef) and isinstance(theirs, cst.FunctionDef):
        yield f"{entry} of the second parent with its kernels", partial(_with_entry, first, second, mine, theirs)


def _with_entry(first: Source, second: Source, mine: cst.FunctionDef, theirs: cst.FunctionDef) -> cst.Module:
    """The second parent's entry in the first module; what both define under one name and the entry needs comes along."""
    needed = _needs(second.module, theirs)
    definitions, incoming = _definitions(first.module), _definitions(second.module)
    edits: list[tuple[cst.CSTNode, Any]] = [(mine, lambda _: theirs.with_changes(leading_lines=mine.leading_lines))]
    for name in needed & set(definitions) - {theirs.name.value, "CONFIG", "SPACE"}:
        new = incoming[name].with_changes(leading_lines=definitions[name].leading_lines)
        edits.append((definitions[name], lambda _, new=new: new))
    module = edited(first.module, edits)
    values = read_knobs(second.module.code).default
    shared = {name: value for name, value in values.items() if name in read_knobs(module.code).default}
    tree = module_tree(code(theirs.with_changes(leading_lines=[], decorators=[])))
    return _completed(_with_values(module, shared), second.module, tree)


def _completed(module: cst.Module, donor: cst.Module, part: ast.AST) -> cst.Module:
    """Adds what a part taken from `donor` reads and `module` lacks: functions, constants, knobs.

    Raises:
        NotApplicableError: A definition of the same name means something else.
    """
    have, incoming = _definitions(module), _definitions(donor)
    wanted = _reads(part)
    while True:
        more = {read for name in wanted & set(incoming) for read in _reads(module_tree(code(incoming[name])))} - wanted
        if not more:
            break
        wanted |= more
    for name in sorted(wanted & set(incoming) & set(have) - {"CONFIG", "SPACE"} - _defined(part)):
        if _meaning(have[name]) != _meaning(incoming[name]):
            raise NotApplicableError(f"{name} differs between the parents")
    new = [node for name, node in incoming.items() if name in wanted - set(have) - {"CONFIG", "SPACE"}]
    place = next((i for i, line in enumerate(module.body) if isinstance(line, cst.FunctionDef)), len(module.body))
    module = module.with_changes(body=[*module.body[:place], *new, *module.body[place:]])
    knobs, known = read_knobs(donor.code), read_knobs(module.code).default
    for name, value in knobs.default.items():
        if name not in known and "CONFIG" in wanted and f'"{name}"' in ast.unparse(part).replace("'", '"'):
            module = with_knob(module, name, value, knobs.space.get(name, (value,)))
    return module


def _needs(module: cst.Module, part: cst.FunctionDef) -> set[str]:
    """Names defined at the module's top level that a part reads, directly or not."""
    definitions = _definitions(module)
    found: set[str] = set()
    queue = [code(part)]
    while queue:
        more = (_reads(module_tree(queue.pop().strip())) & set(definitions)) - found
        found |= more
        queue += [code(definitions[name]) for name in more]
    return found


def _reads(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _defined(part: ast.AST) -> set[str]:
    return {node.name for node in ast.walk(part) if isinstance(node, ast.FunctionDef)}


def _meaning(node: cst.CSTNode) -> str:
    return ast.dump(module_tree(code(node).strip()))


def _definitions(module: cst.Module) -> dict[str, Any]:
    """Functions, classes and assigned constants at the top level."""
    found: dict[str, Any] = {}
    for node in module.body:
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            found[node.name.value] = node
        elif isinstance(node, cst.SimpleStatementLine) and isinstance(node.body[0], cst.Assign | cst.AnnAssign):
            tree = module_tree(code(node).strip()).body[0]
            found.update({n.id: node for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)})
    return found
