"""Finds smaller constants for a KernelBench problem, with which a kernel can be checked in no time."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from evo.errors import TaskError
from evo.suites.kernelbench_problems import Constants, Problem, constants_of, read_problem
from evo.syntax import module_tree

ELEMENTS = 200_000
"""Of the inputs of a reduced case; Triton's interpreter needs a millisecond per program."""


NARROW, LESS_NARROW = 8, 32
"""Of a model that is narrower: channels, which must be a multiple of their groups."""
BATCHES = ("batch_size", "batch", "B", "N")
"""Names of constants that can be made smaller where no other can."""


def reduced(path: Path, elements: int = ELEMENTS, as_it_is: Problem | None = None) -> tuple[Problem, Constants]:
    """A problem with the first of some smaller sets of constants that its model takes.

    Args:
        path: Of its file.
        elements: Of the inputs and parameters of the small case, at most.
        as_it_is: See `read_problem`.

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
    as_it_is = read_problem(path, []) if as_it_is is None else as_it_is
    parameters = sum(map(torch.numel, as_it_is.training.model.parameters()))
    for chosen in _smaller(constants, shapes, of_model):
        if parameters > elements and not of_model & chosen.keys():
            error = TaskError(str(path), given="no constants by which its model becomes small")
            continue
        try:
            return read_problem(path, [chosen], as_it_is=as_it_is, elements=elements), chosen
        except TaskError as failed:
            error = failed
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
    firsts = (5, 9, 17, 33)
    for first, narrow in [*itertools.product(firsts, (0, NARROW)), *((first, LESS_NARROW) for first in firsts)]:
        free = [value for name, value in constants.items() if name not in of_model]
        sizes = sorted({value for value in (*free, *itertools.chain(*shapes.values())) if value > 8})
        mapped = {value: first + 2 * place for place, value in enumerate(sizes)}
        chosen: dict[str, object] = {
            name: mapped[value] for name, value in constants.items() if value in mapped and name not in of_model
        }
        if narrow:
            for name, value in constants.items():
                if name in of_model and value > 2 * narrow:
                    chosen[name] = narrow if value % narrow == 0 else value >> (value.bit_length() - 3)
        found: dict[str, object] = {name: min(int(str(value)), constants[name]) for name, value in chosen.items()}
        yield found | {name: tuple(mapped.get(item, item) for item in shape) for name, shape in shapes.items()}
    yield {name: 2 for name in BATCHES if constants.get(name, 0) > 2 and name not in of_model}
