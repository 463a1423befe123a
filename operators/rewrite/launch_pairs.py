"""Reads two launches that follow each other: what stands between them, what one passes on to the other, which names are the same."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import unused
from operators.rewrite.aliases import Aliases, in_launch_terms
from operators.rewrite.grids import passable, sizes
from operators.rewrite.memory import bases
from operators.source import Kernel, Launch, NotApplicableError, Source, called, code, find

ALLOCATIONS = ("torch.empty", "torch.zeros", "torch.full", "torch.ones")


@dataclass(frozen=True)
class Pair:
    """Two launches, their kernels, and the statements that they are."""

    launches: tuple[Launch, Launch]
    kernels: tuple[Kernel, Kernel]
    lines: tuple[Any, Any]


def check_between(pair: Pair) -> None:
    """Raises NotApplicableError unless only allocations stand between the launches, in the same block."""
    for block in find(pair.launches[0].function, cst.IndentedBlock):
        lines: list[Any] = list(block.body)
        if pair.lines[0] in lines and pair.lines[1] in lines:
            between = lines[lines.index(pair.lines[0]) + 1 : lines.index(pair.lines[1])]
            made = all(m.matches(line, m.SimpleStatementLine([m.Assign()])) for line in between)
            if made and all(code(call.func).startswith(ALLOCATIONS) for line in between for call in find(line, cst.Call)):
                return
    raise NotApplicableError(f"more than allocations stands between the launches of {' and '.join(k.name for k in pair.kernels)}")


def check_same_launch(pair: Pair) -> None:
    """Raises NotApplicableError unless both grids have the same sizes, which launches tell, and both unpack the same options."""
    first, second = ([passable(launch, size) for size in sizes(launch)] for launch in pair.launches)
    if first != second:
        raise NotApplicableError(f"the grids of {' and '.join(kernel.name for kernel in pair.kernels)} differ")
    unpacked = [[code(item.value) for item in launch.call.args if item.star] for launch in pair.launches]
    if unpacked[0] != unpacked[1]:
        raise NotApplicableError(f"{' and '.join(kernel.name for kernel in pair.kernels)} unpack different options")


def passed_on(pair: Pair) -> dict[str, list[str]]:
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
    found_values: dict[str, list[str]] = {}
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
        found_values[ast.unparse(stores[0])] = [ast.unparse(load) for load in loads]
    return found_values


def _place(kernel: Kernel, launch: Launch, call: ast.Call) -> tuple[str, str]:
    """Address and mask of an access, as launches give them."""
    mask = next((word.value for word in call.keywords if word.arg == "mask"), None)
    pointer = in_launch_terms(kernel, launch, call.args[0])
    return pointer, "" if mask is None else in_launch_terms(kernel, launch, mask)


def new_names(source: Source, pair: Pair) -> dict[str, str]:
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


def _texts(pair: Pair, side: int) -> dict[str, str]:
    return {name: " ".join(pair.launches[side].text(name).split()) for name in pair.kernels[side].parameters}
