"""Matrix product with fused bias and tanh-GELU, in float16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def gemm_bias_gelu(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """gelu(a @ b + bias) with the tanh form of GELU."""
    return torch.nn.functional.gelu(a @ b + bias, approximate="tanh")


def _case(m: int, n: int, k: int, offset: int = 0) -> Case:
    # Per output: k multiplications and additions, the bias, and eight operations of tanh-GELU.
    return Case(
        name=f"{m}x{n}x{k}",
        arguments=(
            TensorSpec((m, k), "float16", offset=offset),
            TensorSpec((k, n), "float16", scale=max(k, 1) ** -0.5),
            TensorSpec((n,), "float16", scale=0.5),
        ),
        bytes=2 * (m * k + k * n + n + m * n) if m else 0,
        flops=2 * m * n * k + 9 * m * n,
    )


TASK = Task(
    name="gemm_bias_gelu",
    description=(
        "First half of a transformer's feed-forward layer: y = gelu(a @ b + bias). a is [m, k], b is [k, n], bias is [n], all "
        "contiguous float16; y is a new contiguous float16 matrix [m, n]. GELU in its tanh form: "
        "gelu(x) = 0.5 * x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x^3))). Accumulate in float32."
    ),
    entry="gemm_bias_gelu",
    reference=gemm_bias_gelu,
    training_cases=(
        _case(4096, 4096, 1024),  # BERT-large, 4096 tokens
        _case(8192, 6400, 1600),  # GPT-2 XL, 8192 tokens
        _case(2048, 16384, 4096),  # GPT-J 6B
        _case(32, 16384, 4096),  # the same, decoding 32 sequences
        _case(8192, 8192, 8192),  # a large square product, bound by the tensor cores
    ),
    held_out_cases=(
        _case(1, 3072, 768),  # GPT-2, one token
        _case(777, 1111, 555),
        _case(1024, 1024, 1024),
        _case(3150, 5120, 1280),  # ViT-H, 14 images of 225 patches
        _case(16384, 10240, 2560),  # Phi-2
    ),
    # A start that no vector load is aligned to, sizes of 1, a sum of no terms, no rows.
    small_cases=(
        _case(5, 19, 33, offset=1),
        _case(65, 70, 40),
        _case(1, 130, 64),
        _case(1, 1, 1),
        _case(3, 5, 0),
        _case(0, 19, 33),
    ),
    starting_kernels=("starts/gemm_bias_gelu.py",),
    kind="gemm",
)
