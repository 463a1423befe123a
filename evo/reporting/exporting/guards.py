"""What inputs a dispatcher may give to kernels: the tables that its guards check, from the cases that kernels were judged on."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from evo.tasks.base import DTYPE_BYTES, Argument, Case, Task, TensorSpec


def judged_cases(task: Task) -> tuple[Case, ...]:
    """Training and held-out cases, whose shapes span what a dispatcher accepts."""
    return task.training_cases + task.held_out_cases


def guard_table(task: Task) -> list[dict[str, Any]]:
    """One guard per kind of inputs: dtypes, ranks, strides, alignments and plain values, with the range of every size.

    Kinds are kept apart, so that the sizes seen in one dtype vouch for no other.
    """
    kinds: dict[str, list[Case]] = {}
    for case in judged_cases(task):
        kinds.setdefault(json.dumps([_kind(item) for item in case.arguments], sort_keys=True), []).append(case)
    return [_guard(cases) for cases in kinds.values()]


def related_sizes(task: Task) -> list[list[tuple[int, int, int]]]:
    """Sizes that keep a fixed ratio in every case, as groups of (argument, dimension, size in units of the ratio).

    A kernel was judged on no other combination: with a second matrix that has fewer rows than the first has columns, it would
    read beyond the end.
    """
    groups: dict[tuple[int, ...], list[tuple[int, int, int]]] = {}
    arguments = task.cases[0].arguments
    for position, item in enumerate(arguments):
        for dimension in range(len(item.shape) if isinstance(item, TensorSpec) else 0):
            sizes = _sizes(task.cases, position, dimension)
            unit = math.gcd(*sizes) if sizes else 0
            if unit:
                groups.setdefault(tuple(size // unit for size in sizes), []).append((position, dimension, unit))
    return [group for sizes, group in groups.items() if len(group) > 1 and len(set(sizes)) > 1]


def input_bytes(case: Case) -> int:
    """Bytes of the tensors a call is given."""
    return sum(item.nbytes for item in case.arguments if isinstance(item, TensorSpec))


def _sizes(cases: Sequence[Case], position: int, dimension: int) -> tuple[int, ...]:
    """One size in every case; nothing where ranks differ between cases."""
    sizes = []
    for case in cases:
        item = case.arguments[position] if position < len(case.arguments) else None
        if not isinstance(item, TensorSpec) or dimension >= len(item.shape):
            return ()
        sizes.append(item.shape[dimension])
    return tuple(sizes)


def _kind(item: Argument) -> Mapping[str, Any]:
    if not isinstance(item, TensorSpec):
        return {"value": item, "type": type(item).__name__}
    return {
        "dtype": item.dtype,
        "rank": len(item.shape),
        "strides": _strides(item),
        "alignment": item.offset * DTYPE_BYTES[item.dtype] % 16,
    }


def _strides(spec: TensorSpec) -> str | tuple[int, ...]:
    plain = TensorSpec(spec.shape, spec.dtype).element_strides
    return "contiguous" if spec.element_strides == plain else spec.element_strides


def _guard(cases: Sequence[Case]) -> dict[str, Any]:
    arguments: list[dict[str, Any]] = []
    for position, item in enumerate(cases[0].arguments):
        if not isinstance(item, TensorSpec):
            arguments.append({"value": item})
            continue
        columns = [_sizes(cases, position, dimension) for dimension in range(len(item.shape))]
        arguments.append(
            {
                "dtype": item.dtype,
                "strides": _strides(item),
                "alignment": item.offset * DTYPE_BYTES[item.dtype] % 16,
                "sizes": [(min(sizes), max(sizes)) for sizes in columns],
            }
        )
    return {"arguments": arguments, "cases": [case.name for case in cases]}
