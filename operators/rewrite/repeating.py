"""Brings a kernel into a form whose body a program can repeat for several places of the grid, or says why it cannot."""

from __future__ import annotations

import ast
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, instead, unused
from operators.rewrite.accesses import expression_of
from operators.rewrite.guards import Definitions
from operators.rewrite.parameters import with_prologue
from operators.source import Kernel, NotApplicableError, Source, argument, called, code, find, read_source

EFFECTS = ("load", "store", "atomic", "program_id", "num_programs", "debug", "device_", "static_", "inline_asm", "assume")
"""Beginnings of the names of calls that are not functions of their arguments alone."""
OPPOSITE = {ast.Lt: ">=", ast.LtE: ">", ast.Gt: "<=", ast.GtE: "<", ast.Eq: "!=", ast.NotEq: "=="}
EARLY = m.If(body=m.IndentedBlock([m.SimpleStatementLine([m.Return(value=None)])]), orelse=None)


def repeatable(source: Source, kernel: Kernel) -> tuple[Source, Kernel]:
    """The module in which a kernel changes copies of its arguments instead of them, and does nothing where it returned early.

    Raises:
        NotApplicableError: Its body cannot be repeated, or programs depend on each other.
    """
    written = {n.id for n in ast.walk(kernel.tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    changed = [name for name in kernel.parameters if name in written]
    if set(changed) & kernel.constexprs:
        raise NotApplicableError(f"{kernel.name} changes a constexpr")
    early = find(kernel.node.body, cst.If, EARLY)
    if changed or early:
        copies = {name: unused(f"{name}_here", source.names) for name in changed}
        edits: list[tuple[cst.CSTNode, Any]] = []
        for read in find(kernel.node.body, cst.Name):
            if read.value in copies:
                edits.append((read, instead(copies[read.value])))
        edits += _kept_words(kernel.node.body, copies)
        edits.append((kernel.node.body, _nested))
        if copies:
            edits.append((kernel.node.body, with_prologue(kernel, *(f"{new} = {old}" for old, new in copies.items()))))
        source = read_source(edited(source.module, edits).code)
        kernel = source.kernels[kernel.name]
    _check(source, kernel)
    return source, kernel


def _kept_words(block: cst.CSTNode, copies: dict[str, str]) -> list[tuple[cst.CSTNode, Any]]:
    """Names of keyword arguments and attributes are no variables."""
    words = [item.keyword for item in find(block, cst.Arg) if item.keyword is not None]
    words += [item.attr for item in find(block, cst.Attribute)]
    return [(word, lambda _, word=word: word) for word in words if word.value in copies]


def _nested(block: Any) -> Any:
    """Statements behind `if condition: return` stand in a branch."""
    lines = list(block.body)
    place = next((index for index, line in enumerate(lines) if m.matches(line, EARLY)), None)
    if place is None:
        return block
    rest = (
        _nested(cst.IndentedBlock(lines[place + 1 :])) if lines[place + 1 :] else cst.IndentedBlock([cst.parse_statement("pass")])
    )
    branch = lines[place].with_changes(test=_not(lines[place].test), body=rest)
    if not m.matches(branch.whitespace_before_test, m.SimpleWhitespace(" ")):
        branch = branch.with_changes(whitespace_before_test=cst.SimpleWhitespace(" "))
    return block.with_changes(body=[*lines[:place], branch])


def _not(test: cst.BaseExpression) -> cst.BaseExpression:
    tree = expression_of(test)
    if isinstance(tree, ast.Compare) and len(tree.ops) == 1 and type(tree.ops[0]) in OPPOSITE:
        return cst.parse_expression(f"{ast.unparse(tree.left)} {OPPOSITE[type(tree.ops[0])]} {ast.unparse(tree.comparators[0])}")
    return cst.parse_expression(f"not ({code(test)})")


def _check(source: Source, kernel: Kernel) -> None:
    nodes = list(ast.walk(kernel.tree))
    starts = [n.iter.args[0] for n in nodes if isinstance(n, ast.For) and isinstance(n.iter, ast.Call) and n.iter.args]
    if "num_programs" in kernel.uses or any(is_place(Definitions(kernel).resolve(start)) for start in starts):
        raise NotApplicableError(f"{kernel.name} already walks through the grid in a loop")
    if any(isinstance(n, ast.Return) for n in nodes):
        raise NotApplicableError(f"{kernel.name} returns a value, or early from a branch or loop")
    if any(called(n) == "program_id" and not is_place(n) for n in nodes):
        raise NotApplicableError(f"{kernel.name} has a grid of several axes")
    helpers: set[str] = set()
    for _ in source.kernels:  # each round reaches one call deeper
        trees = [kernel.tree, *(source.kernels[name].tree for name in helpers)]
        helpers |= {n.id for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Name)} & set(source.kernels)
    if any(use.startswith(EFFECTS[:5]) for name in helpers for use in source.kernels[name].uses):
        raise NotApplicableError(f"{kernel.name} calls functions that use the grid or memory themselves")
    if kernel.uses & {"atomic_cas", "atomic_xchg", "debug_barrier"}:
        raise NotApplicableError(f"the programs of {kernel.name} wait for each other")
    if len(kernel.tree.body) != len(kernel.node.body.body):
        raise NotApplicableError(f"{kernel.name} has several statements on a line")


def is_place(node: ast.AST) -> bool:
    """Whether a node is `tl.program_id(0)`."""
    axis = argument(node, 0, "axis") if isinstance(node, ast.Call) and called(node) == "program_id" else None
    return axis is not None and ast.unparse(axis) == "0"
