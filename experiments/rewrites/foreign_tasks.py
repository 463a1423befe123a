"""Five kernels of TritonBench-G as tasks, with references of our own, to measure rewrites on what was not written for them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from evo.suites.tritonbench_files import SEPARATOR
from evo.tasks.base import Case, Task, TensorSpec
from experiments.rewrites.corpus import TRITONBENCH


@dataclass(frozen=True)
class _Foreign:
    """A file, the reference of what it computes, and how its own function is called from one of the reference's name."""

    file: str
    kind: str
    reference: Callable[..., Any]
    call: str
    specs: Callable[[int, int], tuple[TensorSpec, ...]]
    training: tuple[tuple[int, int], ...]


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Row by row."""
    return torch.softmax(x, -1)


def swiglu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """silu(a) · b."""
    return torch.nn.functional.silu(a) * b


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Of the last axis, with a weight."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight).to(x.dtype)


def leaky_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A leaky ReLU with slope 0.01 of a product of matrices."""
    return torch.nn.functional.leaky_relu(a @ b, 0.01)


def _matrix(rows: int, columns: int) -> tuple[TensorSpec, ...]:
    return (TensorSpec((rows, columns), "float32"),)


def _two(rows: int, columns: int) -> tuple[TensorSpec, ...]:
    return _matrix(rows, columns) * 2


def _weighted(rows: int, columns: int) -> tuple[TensorSpec, ...]:
    return (TensorSpec((rows, columns), "float32"), TensorSpec((columns,), "float32"))


def _batched(rows: int, columns: int) -> tuple[TensorSpec, ...]:
    return (TensorSpec((1, rows, columns), "float16"), TensorSpec((columns,), "float16"))


def _factors(size: int, inner: int) -> tuple[TensorSpec, ...]:
    return (TensorSpec((size, inner), "float16"), TensorSpec((inner, size), "float16"))


ROWS = ((4096, 4096), (16384, 1024))
FOREIGN = (
    _Foreign("softmax_triton1", "reduction", softmax, "softmax(x)", _matrix, ROWS),
    _Foreign("swiglu_triton", "elementwise", swiglu, "swiglu_forward(a, b)[2]", _two, ROWS),
    _Foreign("rmsnorm_implementation", "norm", rms_norm, "rmsnorm_wrapper(x, weight)", _batched, ROWS),
    _Foreign("rmsnorm_fused_llama", "norm", rms_norm, "rmsnorm_forward(x, weight, 1e-6)", _weighted, ROWS),
    _Foreign("matmul_leakyrelu", "gemm", leaky_product, 'matmul(a, b, activation="leaky_relu")', _factors, ((2048, 2048), (4096, 1024))),
)  # fmt: skip


def foreign_tasks() -> list[Task]:
    """The tasks; none where the environment names no folder."""
    folder = os.environ.get(TRITONBENCH, "")
    return [_task(Path(folder), item) for item in FOREIGN] if folder else []


def _task(folder: Path, item: _Foreign) -> Task:
    kernels = (folder / f"{item.file}.py").read_text().partition(SEPARATOR)[0]
    names = item.reference.__code__.co_varnames[: item.reference.__code__.co_argcount]
    entry = f"foreign_{item.reference.__name__}"
    source = f"{kernels.rstrip()}\n\n\ndef {entry}({', '.join(names)}):\n    return {item.call}\n"

    def case(rows: int, columns: int) -> Case:
        specs = item.specs(rows, columns)
        size = sum(spec.nbytes for spec in specs) + specs[0].nbytes
        return Case(f"{rows}x{columns}", specs, bytes=size, flops=rows * columns)

    return Task(
        name=f"tritonbench_{item.file}",
        description=f"{item.reference.__doc__} From TritonBench-G, {item.file}.py.",
        entry=entry,
        reference=item.reference,
        training_cases=tuple(case(*sizes) for sizes in item.training),
        held_out_cases=(),
        small_cases=(case(3, 37), case(2, 64)),
        starting_kernels=(source,),
        kind=item.kind,
    )
