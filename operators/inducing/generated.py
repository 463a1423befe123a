"""Reads a module that Inductor generated: its kernels with what decorates them, and the function that calls them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from evo.syntax import module_tree
from operators.source import NotApplicableError


@dataclass(frozen=True)
class GeneratedKernel:
    """A kernel as Inductor wrote it.

    Attributes:
        name: Of the function.
        node: Its definition; decorators are taken off.
        companions: Other functions of its source, which it calls.
        grid: Kind of its grid, such as ``Grid1D``.
        template: Tiles and options that a template fixes in the first lines of its body; empty for other kernels.
    """

    name: str
    node: ast.FunctionDef
    companions: tuple[ast.FunctionDef, ...]
    grid: str
    template: Mapping[str, object]


@dataclass(frozen=True)
class Generated:
    """A generated module: its kernels by name, and the body of `call` with blocks of devices taken apart."""

    kernels: Mapping[str, GeneratedKernel]
    body: tuple[ast.stmt, ...]


def read_generated(code: str) -> Generated:
    """Parses what Inductor generated.

    Raises:
        NotApplicableError: It has another form than is known.
    """
    tree = module_tree(code)
    kernels = {}
    call = None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "call":
            call = node
        elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith("async_compile."):
            if ast.unparse(node.func) != "async_compile.triton":
                if ast.unparse(node.func) != "async_compile.wait":
                    raise NotApplicableError(f"Inductor made a kernel by {ast.unparse(node.func)}, which is no Triton")
                continue
            name, source = (item.value if isinstance(item, ast.Constant) else "" for item in node.args[:2])
            kernels[str(name)] = _kernel(str(name), str(source))
    if call is None:
        raise NotApplicableError("what Inductor generated has no function call")
    return Generated(kernels, tuple(_flat(call.body)))


def _flat(body: list[ast.stmt]) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    for node in body:
        found += _flat(node.body) if isinstance(node, ast.With) else [node]
    return found


def _kernel(name: str, source: str) -> GeneratedKernel:
    functions = [node for node in module_tree(source).body if isinstance(node, ast.FunctionDef)]
    kernel = next((node for node in functions if node.name == name), None)
    if kernel is None:
        raise NotApplicableError(f"the source of kernel {name} does not define it")
    meta: dict[str, object] = {}
    for decorator in kernel.decorator_list:
        if isinstance(decorator, ast.Call):
            for keyword in decorator.keywords:
                if keyword.arg == "inductor_meta" and isinstance(keyword.value, ast.Dict):
                    meta |= _literals(keyword.value)
    kernel.decorator_list = []
    companions = tuple(node for node in functions if node is not kernel)
    for node in companions:
        node.decorator_list = []
    template = meta.get("config_args") if ast.unparse(kernel).find("BLOCK_M: tl.constexpr =") >= 0 else None
    return GeneratedKernel(
        name, kernel, companions, str(meta.get("grid_type", "")), template if isinstance(template, dict) else {}
    )


def _literals(node: ast.Dict) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if not isinstance(key, ast.Constant):
            continue
        try:
            found[str(key.value)] = ast.literal_eval(value)
        except ValueError:  # a call, such as of a device's properties
            continue
    return found
