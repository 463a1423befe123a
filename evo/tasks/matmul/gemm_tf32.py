"""Matrix product of float32 matrices whose products may be taken in TF32."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec, Tolerance


def gemm_tf32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b."""
    return a @ b


def _case(m: int, n: int, k: int, offset: int = 0) -> Case:
    a = TensorSpec((m, k), "float32", offset=offset)
    b = TensorSpec((k, n), "float32", scale=k**-0.5)
    return Case(f"{m}x{n}x{k}", (a, b), a.nbytes + b.nbytes + 4 * m * n, 2 * m * n * k)


TASK = Task(
    name="gemm_tf32",
    description=(
        "Matrix product y = a @ b of contiguous float32 matrices a [m, k] and b [k, n]; y is a new contiguous float32 matrix "
        "[m, n]. Products may be taken in TF32, sums are in float32."
    ),
    entry="gemm_tf32",
    reference=gemm_tf32,
    training_cases=(
        _case(4096, 4096, 4096),
        _case(8192, 1024, 4096),  # an inner layer of BERT-large, 8192 tokens
        _case(128, 8192, 2048),  # a wide layer, small batch
    ),
    held_out_cases=(_case(1, 1024, 1024), _case(777, 1111, 555), _case(8192, 8192, 4096)),
    small_cases=(_case(5, 19, 33, offset=1), _case(65, 70, 40), _case(1, 130, 64)),
    starting_kernels=("../starts/gemm_tf32.py",),
    # As PyTorch's own float32 products where torch.backends.cuda.matmul.allow_tf32 is set.
    tolerance=Tolerance(products="tf32"),
    kind="gemm",
)
