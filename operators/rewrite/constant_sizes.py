"""Makes the sizes and strides a kernel is launched with constants of its compilation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst

from operators.edits import edited
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.parameters import only_launches
from operators.source import Kernel, Launch, NotApplicableError, Source, code, find

SIZE = re.compile(r"\.shape\b|\.stride\(|\.size\(|\.numel\(\)|\blen\(")


class ConstantSizes(Rewrite):
    """Parameters that launches give from shapes and strides become `tl.constexpr`.

    The compiler then knows trip counts, divides by constants and drops masks that always hold. A kernel is compiled once per shape, which
    suits those that see few; where sequence lengths vary from call to call it does not.
    """

    name = "constant_sizes"
    when = "Few shapes are used; loops are short, indices are divided, masks hold for whole tiles."
    cites = "Triton documentation, triton.language.constexpr; specialisation by shape as in TorchInductor's static shapes."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per kernel."""
        for kernel in source.kernels.values():
            strategy = f"{kernel.name} is compiled for the sizes it is launched with"
            yield Site(strategy, partial(_rewrite, source, kernel))


def _rewrite(source: Source, kernel: Kernel) -> cst.Module:
    launches = only_launches(source, kernel)
    parameters = [name for name in kernel.parameters if name not in kernel.constexprs and _may_be_constant(source, kernel, name)]
    sizes = {name for name in parameters if all(_is_size(launch, name) for launch in launches)}
    if not sizes:
        raise NotApplicableError(f"no parameter of {kernel.name} is a size or stride that could be a constant")
    edits: list[tuple[cst.CSTNode, Any]] = []
    for parameter in kernel.node.params.params:
        if parameter.name.value in sizes:
            annotation = cst.Annotation(cst.parse_expression("tl.constexpr"))
            edits.append((parameter, lambda node, annotation=annotation: node.with_changes(annotation=annotation)))
    module = edited(source.module, edits)
    assert isinstance(module, cst.Module)
    return module


def _may_be_constant(source: Source, kernel: Kernel, name: str) -> bool:
    """Whether a kernel only reads a parameter, in ways that plain numbers allow and that keep their rounding."""
    for node in ast.walk(kernel.tree):
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load):
            return False
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name:
            return False
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and _mentions(node, name):
            return False
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in source.kernels
            and _mentions(node, name)
        ):
            return False
    default = next(item.default for item in kernel.node.params.params if item.name.value == name)
    return default is None


def _mentions(node: ast.AST, name: str) -> bool:
    return any(isinstance(item, ast.Name) and item.id == name for item in ast.walk(node))


def _is_size(launch: Launch, name: str) -> bool:
    given = launch.arguments.get(name)
    if given is None:
        return False
    text = code(given.value).strip()
    if SIZE.search(text):
        return not re.search(r"[/(]\s*float|\*\*|(?<!/)/(?!/)", text)
    return bool(re.fullmatch(r"\w+", text)) and _is_local_size(launch, text)


def _is_local_size(launch: Launch, name: str) -> bool:
    """Whether a local is assigned once, from a shape, alone or among others."""
    found = []
    for line in find(launch.function, cst.Assign):
        for target, value in (pair for item in line.targets for pair in _pairs(item.target, line.value)):
            if name in re.split(r"\W+", code(target)):
                found.append(code(value))
    return len(found) == 1 and bool(SIZE.search(found[0])) and not re.search(r"(?<!/)/(?!/)|\*\*|float", found[0])


def _pairs(target: cst.BaseExpression, value: cst.BaseExpression) -> list[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """What is assigned to what, of a tuple to a tuple one by one."""
    if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple) and len(target.elements) == len(value.elements):
        return [(one.value, other.value) for one, other in zip(target.elements, value.elements, strict=True)]
    return [(target, value)]
