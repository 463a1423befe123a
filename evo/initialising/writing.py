"""Writes a task file, with a comment at each guess that a person should check."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence

import torch

from evo.errors import InputError
from evo.initialising.deriving import Derived, Sized
from evo.initialising.reading import Given
from evo.syntax import module_tree
from evo.tasks.base import TensorSpec

OURS = ("Case", "Task", "TensorSpec", "Tolerance", "MODEL", "case", "reference")
"""Names that a task file has besides those of the reference's file, which come first: another one is taken where a name is used there."""


def task_file_text(
    given: Given, names: Sequence[str], derived: Derived, *, task: str, kernel: tuple[str, str] | None, entry: str
) -> str:
    """The text of a task file.

    Args:
        given: The reference; its file's text is taken over, so that the task is whole and a store can tell when it changes.
        names: Of the inputs.
        derived: Its cases.
        task: Name of the task.
        kernel: Path of a starting kernel, relative to the task file, and its function.
        entry: What kernels define.

    Raises:
        InputError: The reference's file is a task file.
    """
    source = given.path.read_text(encoding="utf-8-sig").rstrip()
    future = "from __future__ import annotations"
    body = source.replace(future, "").strip("\n")
    ours = _own_names(given, source)
    imported = ", ".join(name if ours[name] == name else f"{name} as {ours[name]}" for name in OURS[:4])
    parts = [
        f'"""The task {task}: {given.name} of {given.path.name}. Written by `triton-evolve init`; check what is marked CHECK."""',
        future,
        f"# {given.path.name}, as it was\n{body}",
        f"# The task\nfrom evo.tasks.base import {imported}",
        _reference(given, names, ours),
        _case_function(names, derived, ours),
        _task(given, names, derived, task, kernel, entry, ours),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _own_names(given: Given, source: str) -> Mapping[str, str]:
    """Our names as they are written in this file."""
    nodes = list(ast.walk(module_tree(source)))
    theirs = {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    if "TASK" in theirs:
        action = "look at it with `triton-evolve doctor --task`; a reference is given by a file without a task"
        raise InputError(str(given.path), given="a file that defines TASK, so a task file already", action=action)
    return {name: name + "_" * next(n for n in range(len(source)) if name + "_" * n not in theirs) for name in OURS}


def _reference(given: Given, names: Sequence[str], ours: Mapping[str, str]) -> str:
    if not given.is_module:
        return ""
    lines = ["# CHECK: " + item for item in given.guesses]
    make = (
        f"{given.name}(*get_init_inputs())"
        if "get_init_inputs" in given.path.read_text(encoding="utf-8-sig")
        else f"{given.name}()"
    )
    model = ours["MODEL"]
    call = f"    return torch.func.functional_call({model}, parameters, ({', '.join(names)},))"
    taken = ["parameters", *names] if given.state else list(names)
    if not given.state:
        call = f"    return {model}({', '.join(names)})"
    imported = (
        [] if re.search(r"^import torch$", given.path.read_text(encoding="utf-8-sig"), re.MULTILINE) else ["import torch", ""]
    )
    return "\n".join(
        [
            *imported,
            *lines,
            f"{model} = {make}.eval().requires_grad_(False)",
            "",
            "",
            f"def {ours['reference']}({', '.join(taken)}):",
            call,
        ]
    )


def _symbols(derived: Derived) -> dict[int, str]:
    return {size: f"n{place}" for place, size in enumerate(derived.varying)}


def _case_function(names: Sequence[str], derived: Derived, ours: Mapping[str, str]) -> str:
    symbols = _symbols(derived)
    sizes = "".join(f"{name}, " for name in symbols.values())
    notes = [f"# CHECK: {item}" for item in derived.guesses]
    if not symbols:
        notes.append("# CHECK: the reference runs with no other sizes than these")
    lines = [*notes, f"def {ours['case']}(name, {sizes}bytes, flops):"]
    for name, item in zip(names, derived.training.arguments, strict=True):
        if isinstance(item, TensorSpec):
            lines.append(f"    {name} = {_spec(item, symbols, ours['TensorSpec'])}{_note(item)}")
    given = ", ".join(
        name if isinstance(item, TensorSpec) else repr(item) for name, item in zip(names, derived.training.arguments, strict=True)
    )
    lines.append(f"    return {ours['Case']}(name, ({given},), bytes=bytes, flops=flops)")
    return "\n".join(["", *lines])


def _spec(spec: TensorSpec, symbols: Mapping[int, str], made_by: str) -> str:
    shape = ", ".join(symbols.get(size, str(size)) for size in spec.shape)
    text = f'{made_by}(({shape}{"," if len(spec.shape) == 1 else ""}), "{spec.dtype}"'
    if spec.distribution != "normal":
        text += f', "{spec.distribution}"'
    if spec.distribution in ("uniform", "integers"):
        number = float if spec.distribution == "uniform" else int
        text += f", low={number(spec.low)}, high={_high(spec, symbols)}"
    if spec.strides is not None:
        text += f", strides={spec.strides}"
    return text + ")"


def _high(spec: TensorSpec, symbols: Mapping[int, str]) -> str:
    if spec.distribution == "uniform":
        return str(float(spec.high))
    return symbols.get(int(spec.high), str(int(spec.high)))


def _note(spec: TensorSpec) -> str:
    if spec.distribution == "integers":
        return "  # CHECK: which integers may come"
    return (
        "  # CHECK: declared as any real number; say uniform with low and high for a range"
        if spec.distribution == "normal"
        else ""
    )


def _named(case: Sized, derived: Derived) -> str:
    sizes = case.sizes or tuple(size for item in case.arguments if isinstance(item, TensorSpec) for size in item.shape)
    return "x".join(map(str, sizes)) or "scalar"


def _cases(cases: Sequence[Sized], derived: Derived, function: str, prefix: str = "") -> str:
    lines = []
    for case in cases:
        sizes = "".join(f"{size}, " for size in case.sizes)
        lines.append(f'        {function}("{prefix}{_named(case, derived)}", {sizes}bytes={case.bytes}, flops={case.flops}),')
    return "(\n" + "\n".join(lines) + "\n    )" if lines else "()"


def _task(
    given: Given,
    names: Sequence[str],
    derived: Derived,
    task: str,
    kernel: tuple[str, str] | None,
    entry: str,
    ours: Mapping[str, str],
) -> str:
    same = derived.small[0].sizes == derived.training.sizes
    reference, case = ours["reference"] if given.is_module else given.name, ours["case"]
    lines = [
        "",
        f"TASK = {ours['Task']}(",
        f'    name="{task}",',
        f"    description={_description(given, names, derived)!r},  # CHECK: a model may be given this alone",
        f'    entry="{entry}",',
        f"    reference={reference},",
        f"    training_cases={_cases([derived.training], derived, case)},  # CHECK: the shapes that matter to you, what the search scores",
        f"    held_out_cases={_cases(derived.held_out, derived, case)},",
        f"    small_cases={_cases(derived.small, derived, case, 'small_' if same else '')},",
        f"    starting_kernels={(kernel[0],) if kernel else ()!r},",
        f"    tolerance={ours['Tolerance']}(),{_products(derived)}",
    ]
    if derived.products:
        lines.append(
            "    allowed_operators=frozenset(),  # CHECK: e.g. aten.mm, aten.convolution, where kernels may call those of torch"
        )
    if derived.mutates:
        lines.append(f"    mutates={derived.mutates},  # a run changed them")
    if given.state:
        lines += [
            '    form="module",',
            f"    init_arguments={given.init_arguments!r},",
            "    parameters={  # CHECK: drawn around their initial values",
            *(f'        "{name}": {_parameter(item, ours["TensorSpec"])},' for name, item in given.state.items()),
            "    },",
        ]
    lines += [f'    kind="{derived.kind}",', ")"]
    return "\n".join(lines)


def _products(derived: Derived) -> str:
    specs = [item for item in derived.training.arguments if isinstance(item, TensorSpec)]
    if derived.products and any(item.dtype == "float32" for item in specs):
        return '  # CHECK: Tolerance(products="tf32") lets tensor cores round float32'
    return "  # at most twice the reference's own error, against float64"


def _parameter(value: torch.Tensor, made_by: str) -> str:
    value = value.detach()
    shape, dtype = tuple(value.shape), str(value.dtype).removeprefix("torch.")
    if value.dtype.is_complex:
        return f'{made_by}({shape}, "{dtype}")'
    if not value.dtype.is_floating_point:
        least, most = (int(value.min()), int(value.max())) if value.numel() else (0, 0)
        if least == most and least in (0, 1):
            return f'{made_by}({shape}, "{dtype}", "{("zeros", "ones")[least]}")'
        return f'{made_by}({shape}, "{dtype}", "integers", low={least}, high={most + 1})'
    low, high = (float(value.min()), float(value.max())) if value.numel() else (0.0, 1.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    return f'{made_by}({shape}, "{dtype}", "uniform", low={low:.6g}, high={high:.6g})'


def _description(given: Given, names: Sequence[str], derived: Derived) -> str:
    shown = ", ".join(
        f"{name} {item.dtype} {list(item.shape)}" if isinstance(item, TensorSpec) else f"{name} = {item!r}"
        for name, item in zip(names, derived.training.arguments, strict=True)
    )
    lines = (getattr(given.function, "__doc__", "") or "").strip().splitlines()
    about = lines[0].strip() if lines and not given.is_module else f"{given.name} as the reference computes it."
    return f"{about} Inputs: {shown}."
