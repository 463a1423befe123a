"""Linear layer on few rows, as in decoding, in bfloat16: bound by reading the weights."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def gemm_decode(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x weightᵀ."""
    return torch.nn.functional.linear(x, weight)


def _case(m: int, n: int, k: int) -> Case:
    x = TensorSpec((m, k), "bfloat16")
    weight = TensorSpec((n, k), "bfloat16", scale=k**-0.5)
    return Case(f"{m}x{n}x{k}", (x, weight), x.nbytes + weight.nbytes + 2 * m * n, 2 * m * n * k)


TASK = Task(
    name="gemm_decode",
    description=(
        "Linear layer without bias on few rows: y = x @ weight^T. x is a contiguous bfloat16 matrix [m, k] with m from 1 to 64,"
        " weight a contiguous bfloat16 matrix [n, k]; y is a new contiguous bfloat16 matrix [m, n]. Accumulate in float32."
    ),
    entry="gemm_decode",
    reference=gemm_decode,
    training_cases=(
        _case(1, 4096, 14336),  # down projection of Llama 3.1 8B, one sequence
        _case(8, 28672, 4096),  # its gate and up projections, eight sequences
        _case(16, 6144, 4096),  # its projection to queries, keys and values
        _case(32, 8192, 8192),  # attention output of Llama 3.1 70B
    ),
    held_out_cases=(_case(1, 2048, 2048), _case(7, 1111, 555), _case(4, 128256, 4096)),  # the last: Llama 3.1 8B's vocabulary
    small_cases=(_case(3, 19, 33), _case(17, 70, 40), _case(1, 130, 64)),
    starting_kernels=("../starts/gemm_decode.py",),
    kind="gemm",
)
