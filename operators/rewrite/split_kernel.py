"""Makes two kernels of one that stores several things, each with the statements that it needs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, unused, without_comments
from operators.rewrite.accesses import calls_of, reads, tree_of, writes
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.dividing import statement_of
from operators.rewrite.memory import bases
from operators.rewrite.parameters import Edits, only_launches
from operators.source import Kernel, Launch, NotApplicableError, Source, called, code, find

STORE = m.SimpleStatementLine([m.Expr(m.Call(func=m.Attribute(m.Name("tl"), m.Name("store"))))])


class SplitKernel(Rewrite):
    """A kernel with several stores becomes two, launched one after the other: one makes what a store needs, one the rest.

    Each has fewer registers in use and may be tuned by itself; what both need is loaded and computed twice. No kernel of the two may load
    what the other stores, and stores must stand outside of loops and branches.
    """

    name = "split_kernel"
    when = "A kernel makes several outputs that share little, and its registers spill or keep programs from running side by side."
    cites = "Loop distribution (Kennedy and Allen, Optimizing compilers for modern architectures, section 6.2); fission in Halide and TVM."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per store of a kernel with several."""
        for kernel in source.kernels.values():
            lines = [line for line in kernel.node.body.body if m.matches(line, STORE)]
            for line in lines if len(lines) > 1 else []:
                strategy = f"{' '.join(code(line).split())[:60]}… of {kernel.name} has a kernel of its own"
                yield Site(strategy, partial(_rewrite, source, kernel, line))


def _rewrite(source: Source, kernel: Kernel, line: Any) -> cst.Module:
    launches = only_launches(source, kernel)
    for launch in launches:
        _check(kernel, launch)
    effects = [other for other in kernel.node.body.body if _has_effect(other)]
    rest = [other for other in effects if other is not line]
    if any(not m.matches(other, STORE) for other in effects):
        raise NotApplicableError(f"{kernel.name} writes memory in a loop or branch, atomically, or returns early")
    one, two = _needed(kernel, [line]), _needed(kernel, rest)
    if len(one) == len(kernel.node.body.body) - len(rest) and len(two) == len(kernel.node.body.body) - 1:
        raise NotApplicableError(f"all that {kernel.name} computes is needed by both of its parts")
    name = unused(f"{kernel.name}_part", source.names)
    shared = {id(other) for other in two}
    body = [without_comments(other) if id(other) in shared else other for other in one]
    docs = [other for other in kernel.node.body.body[:1] if m.matches(other, m.SimpleStatementLine([m.Expr(m.SimpleString())]))]
    node = kernel.node
    part = node.with_changes(
        name=cst.Name(name), body=node.body.with_changes(body=body), leading_lines=[cst.EmptyLine(), cst.EmptyLine()]
    )
    kept = node.with_changes(body=node.body.with_changes(body=[*docs, *two]))
    edits: Edits = [(node, lambda _: cst.FlattenSentinel([kept, part]))]
    for launch in launches:
        edits.append((statement_of(launch), partial(_twice, name=name)))
    module = edited(source.module, edits)
    assert isinstance(module, cst.Module)
    return module


def _check(kernel: Kernel, launch: Launch) -> None:
    """Raises NotApplicableError where what one part stores might be loaded by the other."""
    given = {name: code(item.value) for name, item in launch.arguments.items()}
    accesses = bases(kernel)
    stored = {given.get(base, base) for call, base in accesses.items() if called(call) == "store"}
    loaded = {given.get(base, base) for call, base in accesses.items() if called(call) != "store"}
    if "" in stored | loaded or stored & loaded or kernel.uses & {"debug_barrier", "atomic_add", "atomic_cas"}:
        raise NotApplicableError(f"{kernel.name} may load what it stores")


def _has_effect(line: Any) -> bool:
    calls = [called(node) for node in _walk(line)]
    return any(name == "store" or name.startswith(("atomic", "device_", "debug")) for name in calls) or bool(
        find(line, cst.Return)
    )


def _walk(line: Any) -> Iterator[Any]:
    yield from ast.walk(tree_of(line))


def _needed(kernel: Kernel, stores: list[Any]) -> list[Any]:
    """The statements that some stores need, in order; asserts stay with both."""
    wanted: frozenset[str] = frozenset()
    kept: list[Any] = []
    for line in reversed(kernel.node.body.body):
        asserts = bool(calls_of(line, "static_assert", "assume", "device_assert"))
        if any(line is store for store in stores) or (not _has_effect(line) and (writes(line) & wanted or asserts)):
            wanted |= reads(line) | {name for item in find(line, cst.AugAssign) for name in writes(item)}
            kept.insert(0, line)
    return kept


def _twice(line: Any, name: str) -> Any:
    call = line.body[0].value
    function = call.func.with_changes(value=cst.Name(name))
    second = without_comments(line).with_changes(body=[cst.Expr(call.with_changes(func=function))])
    return cst.FlattenSentinel([line, second])
