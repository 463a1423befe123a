"""One matrix product per expert on rows that are sorted by expert, in bfloat16."""

from __future__ import annotations

import itertools

import torch

from evo.tasks.base import Case, Task, TensorSpec


def grouped_gemm(x: torch.Tensor, weights: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Rows starts[e] … starts[e + 1] − 1 times weights[e], for every e."""
    bounds = starts.tolist()
    y = torch.empty((x.shape[0], weights.shape[2]), dtype=x.dtype, device=x.device)
    for expert, (first, end) in enumerate(itertools.pairwise(bounds)):
        y[first:end] = x[first:end] @ weights[expert]
    return y


def _case(rows: int, experts: int, n: int, k: int) -> Case:
    x = TensorSpec((rows, k), "bfloat16")
    weights = TensorSpec((experts, k, n), "bfloat16", scale=k**-0.5)
    starts = TensorSpec((experts + 1,), "int32", distribution="partition", high=rows)
    moved = x.nbytes + weights.nbytes + starts.nbytes + 2 * rows * n
    return Case(f"{rows}_e{experts}_{n}x{k}", (x, weights, starts), moved, 2 * rows * n * k)


TASK = Task(
    name="grouped_gemm",
    description=(
        "Grouped matrix product of a mixture of experts. x is a contiguous bfloat16 matrix [rows, k], sorted by expert; weights"
        " is a contiguous bfloat16 tensor [experts, k, n]; starts is an ascending int32 vector [experts + 1] from 0 to rows, on"
        " the device. For every expert e, y[starts[e]:starts[e + 1]] = x[starts[e]:starts[e + 1]] @ weights[e]; some experts "
        "may have no rows, some very many. y is a new contiguous bfloat16 matrix [rows, n]. Accumulate in float32."
    ),
    entry="grouped_gemm",
    reference=grouped_gemm,
    training_cases=(
        _case(8192, 8, 14336, 4096),  # Mixtral 8x7B, 2 experts for each of 4096 tokens
        _case(32768, 128, 1536, 2048),  # Qwen3 30B-A3B, gate and up, 8 for each of 4096 tokens
        _case(24576, 64, 2816, 2048),  # DeepSeek-V2-Lite, gate and up, 6 for each of 4096 tokens
    ),
    held_out_cases=(_case(64, 8, 1024, 2048), _case(777, 5, 1111, 555), _case(16384, 8, 14336, 4096)),
    small_cases=(_case(5, 3, 19, 33), _case(70, 4, 40, 17), _case(1, 2, 130, 64)),
    starting_kernels=("../starts/grouped_gemm.py",),
    kind="gemm",
)
