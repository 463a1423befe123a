"""Gate and up projections of a gated feed-forward layer with their activation, in bfloat16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def gemm_swiglu(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(x gate) · (x up)."""
    return torch.nn.functional.silu(x @ gate) * (x @ up)


def _case(m: int, n: int, k: int) -> Case:
    x = TensorSpec((m, k), "bfloat16")
    weight = TensorSpec((k, n), "bfloat16", scale=k**-0.5)
    # Per output: two sums of k products, and five operations of the activation.
    return Case(f"{m}x{n}x{k}", (x, weight, weight), x.nbytes + 2 * weight.nbytes + 2 * m * n, m * n * (4 * k + 5))


TASK = Task(
    name="gemm_swiglu",
    description=(
        "First half of a gated feed-forward layer: y = silu(x @ gate) * (x @ up) with silu(z) = z * sigmoid(z). x is [m, k], "
        "gate and up are [k, n], all contiguous bfloat16; y is a new contiguous bfloat16 matrix [m, n]. Accumulate in float32."
    ),
    entry="gemm_swiglu",
    reference=gemm_swiglu,
    training_cases=(
        _case(4096, 14336, 4096),  # Llama 3.1 8B
        _case(2048, 8192, 2048),  # Llama 3.2 1B
        _case(32, 14336, 4096),  # Llama 3.1 8B decodes 32 sequences
        _case(4096, 18944, 3584),  # Qwen2.5 7B
    ),
    held_out_cases=(_case(1, 8192, 2048), _case(777, 1111, 555), _case(8192, 14336, 4096)),
    small_cases=(_case(5, 19, 33), _case(65, 70, 40), _case(1, 130, 64)),
    starting_kernels=("../starts/gemm_swiglu.py",),
    kind="gemm",
)
