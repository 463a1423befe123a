"""Finds smaller constants for a KernelBench problem, with which a kernel can be checked in no time."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

from evo.errors import TaskError
from evo.suites.kernelbench_problems import Constants, Problem, constants_of, read_problem
from evo.syntax import module_tree
from evo.tasks.base import TensorSpec

ELEMENTS = 200_000
"""Of the inputs of a reduced case; Triton's interpreter needs a millisecond per program."""


BATCHES = ("batch_size", "batch", "B", "N")
"""Names of constants that can be made smaller where no other can."""


def reduced(path: Path, elements: int = ELEMENTS) -> tuple[Problem, Constants]:
    """A problem with the first of some smaller sets of constants that its model takes.

    Raises:
        TaskError: None of them, or the problem cannot be read; says what the last one failed with.
    """
    tree = module_tree(path.read_text(encoding="utf-8"))
    constants: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, constant in constants_of(tree).items():
        try:
            value = ast.literal_eval(constant.value)
        except ValueError:  # computed, such as a product of others
            value = _product(constant.value, constants)
        if isinstance(value, int) and not isinstance(value, bool):
            constants[name] = value
        elif isinstance(value, tuple) and value and all(isinstance(item, int) for item in value):
            shapes[name] = value
    of_model = _read_by(tree, "get_init_inputs")
    error: TaskError | None = None
    for chosen in _smaller(constants, shapes, of_model):
        try:
            problem = read_problem(path, [chosen])
        except TaskError as failed:
            error = failed
            continue
        if _elements(problem) <= elements:
            return problem, chosen
        error = TaskError(str(path), given="no constants by which its inputs become small")
    raise error or TaskError(str(path), given="no constants")


def _product(node: ast.expr, constants: Mapping[str, int]) -> object:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = (_product(item, constants) for item in (node.left, node.right))
        return left * right if isinstance(left, int) and isinstance(right, int) else None
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    return node.value if isinstance(node, ast.Constant) else None


def _read_by(tree: ast.Module, name: str) -> set[str]:
    function = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name), None)
    return {node.id for node in ast.walk(function) if isinstance(node, ast.Name)} if function else set()


def _smaller(
    constants: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]], of_model: set[str]
) -> Iterator[dict[str, object]]:
    """Odd sizes for what only the inputs read; then smaller models too; equal constants stay equal. At last, only the batch is smaller."""
    for first, narrow in itertools.product((5, 9, 17, 33), (False, True)):
        free = [value for name, value in constants.items() if name not in of_model]
        sizes = sorted({value for value in (*free, *itertools.chain(*shapes.values())) if value > 8})
        mapped = {value: first + 2 * place for place, value in enumerate(sizes)}
        chosen: dict[str, object] = {
            name: mapped[value] for name, value in constants.items() if value in mapped and name not in of_model
        }
        if narrow:
            for name, value in constants.items():
                if name in of_model and value > 16:
                    chosen[name] = 8 if value % 8 == 0 else value >> (value.bit_length() - 3)
        found: dict[str, object] = {name: min(int(str(value)), constants[name]) for name, value in chosen.items()}
        yield found | {name: tuple(mapped.get(item, item) for item in shape) for name, shape in shapes.items()}
    yield {name: 2 for name in BATCHES if constants.get(name, 0) > 2 and name not in of_model}


def _elements(problem: Problem) -> int:
    return sum(item.numel for item in problem.small[0].case.arguments if isinstance(item, TensorSpec))
