"""Describes a task in words and source, for prompts and for people; held-out cases never appear."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from evo.syntax import module_tree
from evo.tasks.base import Argument, Case, Task, TensorSpec
from evo.tasks.draws import Variation

_PRODUCTS = {
    "float32": "; products of float32 values are taken in float32 (input_precision='ieee' in tl.dot), neither in TF32 nor in 16 bits",
    "tf32": "; products of float32 values may be taken in TF32, not in 16 bits; sums are in float32",
    "float16": "; products of float32 values may be taken in float16; sums are in float32",
    "bfloat16": "; products of float32 values may be taken in bfloat16; sums are in float32",
}
"""What `Tolerance.products` asks of a kernel, for tasks that have float32 inputs."""


def task_text(task: Task) -> str:
    """Everything a writer of kernels may know: description, entry, training cases, exactness, allowed operators."""
    lines = [f"Task: {task.name}", "", task.description, "", f"Entry: {_entry(task)}"]
    if task.mutates:
        lines.append(f"Updated in place: arguments {', '.join(map(str, task.mutates))} (counted from 0)")
    if task.backward:
        lines.append("Gradients with respect to what is marked (gradient) are computed and judged too.")
    if task.parameters:
        lines += ["Parameters:", *(f"  {name}: {_argument(spec)}" for name, spec in task.parameters.items())]
    lines += [
        "Cases that are scored (others of the same kind are checked):",
        *(f"  {_case(case)}" for case in task.training_cases),
    ]
    lines += [
        f"Exactness: {_exactness(task)}",
        f"Inputs are checked as declared and varied (where they are floating-point): {_variations(task)}",
        f"Torch operators allowed besides allocation, views, fills, copies, casts: {_operators(task)}",
    ]
    return "\n".join(lines) + "\n"


def reference_source(task: Task) -> str:
    """Source of the reference with the imports, constants and functions of its own file that it uses, in file order.

    Raises:
        OSError: The source of the reference is not available (it was defined interactively).
    """
    own = inspect.getsource(task.reference)
    path = inspect.getsourcefile(task.reference)
    if path is None:
        return own
    text = Path(path).read_text(encoding="utf-8-sig")
    body = module_tree(text).body
    wanted, nodes = {task.reference.__name__}, set[int]()
    grew = True
    while grew:
        grew = False
        for index, node in enumerate(body):
            if index not in nodes and _defines(node) & wanted:
                nodes.add(index)
                wanted |= {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
                grew = True
    parts = [_segment(text, body, index) for index in sorted(nodes)]
    return "\n\n".join(parts) + "\n" if parts else own


def _defines(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return {node.target.id}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return set()


def _segment(text: str, body: list[ast.stmt], index: int) -> str:
    node = body[index]
    first = min([node.lineno, *(item.lineno for item in getattr(node, "decorator_list", []))])
    return "\n".join(text.splitlines()[first - 1 : node.end_lineno])


def _entry(task: Task) -> str:
    if task.form == "module":
        return f"{task.entry}, an nn.Module subclass constructed with {task.init_arguments!r}, called with the arguments below"
    return f"{task.entry}{_signature(task)}"


def _signature(task: Task) -> inspect.Signature:
    try:
        # Without evaluation, postponed annotations show as quoted strings.
        return inspect.signature(task.reference, eval_str=True)
    except NameError:
        return inspect.signature(task.reference)


def _case(case: Case) -> str:
    return f"{case.name}: " + ", ".join(_argument(item) for item in case.arguments)


def _argument(item: Argument) -> str:
    if not isinstance(item, TensorSpec):
        return repr(item)
    text = f"{item.dtype} [{', '.join(map(str, item.shape))}]"
    if item.strides is not None:
        text += f" strides {item.strides}"
    return text + (" (gradient)" if item.requires_grad else "")


def _exactness(task: Task) -> str:
    if task.oracle == "stochastic":
        return "outputs are random and pass statistical tests; equal seeds give equal bits, other seeds independent ones"
    tolerance = task.tolerance
    text = (
        f"at most {tolerance.ratio:g} times the error of the PyTorch reference against a float64 oracle, "
        "over the whole output, in every row and at the worst element; NaN and infinity exactly where the oracle has them"
    )
    specs = [item for case in task.cases for item in case.arguments if isinstance(item, TensorSpec)]
    if any(spec.dtype == "float32" for spec in [*specs, *task.parameters.values()]):
        text += _PRODUCTS[tolerance.products]
    if tolerance.integer_slack:
        text += f"; integers may differ by {tolerance.integer_slack} in {tolerance.integer_share:.2%} of the elements"
    return text


def _variations(task: Task) -> str:
    names = [item.value.replace("_", " ") for item in Variation if item in task.variations]
    return ", ".join(name for name in names if name != Variation.PLAIN.value) or "none"


def _operators(task: Task) -> str:
    return ", ".join(sorted(task.allowed_operators)) or "none"
